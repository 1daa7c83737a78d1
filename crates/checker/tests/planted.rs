//! Random histories of a log that keeps its promises have no anomaly; each mistake that is planted in one is found.

use std::collections::BTreeSet;

use highwater_checker::{Client, Event, Kind, Payload, check};
use proptest::prelude::*;

/// A log in memory and the clients at it.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
    log: Vec<u64>,
    start: usize,
    sent: u64,
    positions: [usize; CONSUMERS],
}

const CONSUMERS: usize = 3;
const OBSERVER: u32 = 90;
const LAST_READER: u32 = 91;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// By this producer: an even one is idempotent.
    Send(u32, Fate),
    Read(usize, usize),
    Watermark,
    Delete(usize),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Acked,
    StoredAndUnknown,
    StoredTwiceIfPlain,
    GoneAndUnknown,
    Refused,
}

fn step() -> impl Strategy<Value = Step> {
    use Fate::{Acked, GoneAndUnknown, Refused, StoredAndUnknown, StoredTwiceIfPlain};
    let fates = vec![Acked, Acked, Acked, StoredAndUnknown, StoredTwiceIfPlain, GoneAndUnknown, Refused];
    prop_oneof![
        6 => (0..4u32, prop::sample::select(fates)).prop_map(|(producer, fate)| Step::Send(producer, fate)),
        4 => (0..CONSUMERS, 1..5usize).prop_map(|(consumer, count)| Step::Read(consumer, count)),
        2 => Just(Step::Watermark),
        1 => (0..4usize).prop_map(Step::Delete),
    ]
}

impl Model {
    fn of(steps: &[Step]) -> Vec<Event> {
        let mut model = Self::default();
        for step in steps {
            model.take(*step);
        }
        for at in model.start..model.log.len() {
            model.read(LAST_READER, at);
        }
        model.events
    }

    fn read(&mut self, client: u32, at: usize) {
        let payload = Payload(self.log[at]);
        self.events.push(Event::Read { client: Client(client), offset: at as i64, payload });
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send(producer, fate) => {
                let number = self.sent;
                self.sent += 1;
                let (payload, idempotent) = (Payload(number), producer % 2 == 0);
                self.events.push(Event::Sent { client: Client(producer), payload, idempotent });
                if !matches!(fate, Fate::GoneAndUnknown | Fate::Refused) {
                    self.log.push(number);
                }
                if matches!(fate, Fate::StoredTwiceIfPlain) && !idempotent {
                    self.log.push(number);
                }
                self.events.push(match fate {
                    Fate::Acked => Event::Acked { payload, offset: self.log.len() as i64 - 1 },
                    Fate::Refused => Event::Failed { payload },
                    _ => Event::Unknown { payload },
                });
            }
            Step::Read(consumer, count) => {
                let from = self.positions[consumer].max(self.start);
                let to = self.log.len().min(from + count);
                for at in from..to {
                    self.read(10 + consumer as u32, at);
                }
                self.positions[consumer] = to.max(from);
            }
            Step::Watermark => {
                self.events.push(Event::Watermark { client: Client(OBSERVER), high_watermark: self.log.len() as i64 });
            }
            Step::Delete(count) => {
                self.start = self.log.len().min(self.start + count);
                self.events.push(Event::Start { offset: self.start as i64 });
            }
        }
    }
}

/// The reads of a client that are `apart` from each other, as positions of events.
fn pairs_of_reads(events: &[Event], apart: usize) -> Vec<(usize, usize)> {
    let reads_of = |wanted: Client| {
        let is_its =
            move |(_, event): &(usize, &Event)| matches!(event, Event::Read { client, .. } if *client == wanted);
        events.iter().enumerate().filter(is_its).map(|(index, _)| index).collect::<Vec<_>>()
    };
    let clients: BTreeSet<Client> = events
        .iter()
        .filter_map(|event| match event {
            Event::Read { client, .. } => Some(*client),
            _ => None,
        })
        .collect();
    let pairs = |reads: Vec<usize>| (apart..reads.len()).map(|at| (reads[at - apart], reads[at])).collect::<Vec<_>>();
    clients.into_iter().flat_map(|client| pairs(reads_of(client))).collect()
}

fn start(events: &[Event]) -> i64 {
    let starts = events.iter().filter_map(|event| match event {
        Event::Start { offset } => Some(*offset),
        _ => None,
    });
    starts.max().unwrap_or(0)
}

fn is_idempotent(events: &[Event], wanted: Payload) -> Option<Client> {
    events.iter().find_map(|event| match event {
        Event::Sent { client, payload, idempotent: true } if *payload == wanted => Some(*client),
        _ => None,
    })
}

/// Plants a mistake at one of the places that allow it, chosen by `choice`. `None` if there is no such place.
fn plant(kind: Kind, events: &mut Vec<Event>, choice: usize) -> Option<()> {
    let pick = |from: &[usize]| (!from.is_empty()).then(|| from[choice % from.len()]);
    let places = |of: &dyn Fn(&Event) -> bool| -> Vec<usize> {
        events.iter().enumerate().filter(|(_, event)| of(event)).map(|(index, _)| index).collect()
    };
    let first_left = start(events);
    let kept = |event: &Event| matches!(event, Event::Read { offset, .. } if *offset >= first_left);
    let reads = places(&kept);
    match kind {
        Kind::Lost => {
            let at = pick(&places(&|event| matches!(event, Event::Acked { offset, .. } if *offset >= first_left)))?;
            let Event::Acked { offset: lost, .. } = events[at] else { return None };
            events.retain(|event| !matches!(event, Event::Read { offset, .. } if *offset == lost));
        }
        Kind::Gap => {
            // Somebody else reads the record still.
            let pairs = pairs_of_reads(events, 2);
            let skipped = |(before, after): &(usize, usize)| {
                let between = |event: &&Event| matches!((event, &events[*before]), (Event::Read { client, .. }, Event::Read { client: its, .. }) if client == its);
                let inner = (*before + 1..*after).find(|index| between(&&events[*index]))?;
                let Event::Read { offset, .. } = events[inner] else { return None };
                let others = events
                    .iter()
                    .filter(|event| matches!(event, Event::Read { offset: other, .. } if *other == offset));
                (others.count() > 1 && offset >= first_left).then_some(inner)
            };
            let inner: Vec<usize> = pairs.iter().filter_map(skipped).collect();
            let at = pick(&inner)?;
            events.remove(at);
        }
        Kind::Changed => {
            let twice = |index: &usize| {
                let Event::Read { offset, .. } = events[*index] else { return false };
                events
                    .iter()
                    .filter(|event| matches!(event, Event::Read { offset: other, .. } if *other == offset))
                    .count()
                    > 1
            };
            let at = pick(&reads.iter().copied().filter(twice).collect::<Vec<_>>())?;
            let Event::Read { payload, .. } = &mut events[at] else { return None };
            payload.0 += 1_000_000;
        }
        Kind::Unexpected => {
            let at = pick(&reads)?;
            let Event::Read { payload: read, .. } = events[at] else { return None };
            if choice.is_multiple_of(2) {
                events.retain(|event| !matches!(event, Event::Sent { payload, .. } if *payload == read));
            } else {
                events.insert(0, Event::Failed { payload: read });
            }
        }
        Kind::NonMonotonic => {
            let at = pick(&reads)?;
            let again = events[at];
            events.insert(at + 1, again);
        }
        Kind::HighWatermarkBack => {
            let told = pick(&places(
                &|event| matches!(event, Event::Watermark { high_watermark, .. } if *high_watermark > 0),
            ))?;
            let Event::Watermark { client, high_watermark } = events[told] else { return None };
            events.insert(told + 1, Event::Watermark { client, high_watermark: high_watermark - 1 });
        }
        Kind::Duplicate => {
            let idempotent = |index: &usize| matches!(events[*index], Event::Read { payload, .. } if is_idempotent(events, payload).is_some());
            let at = pick(&reads.iter().copied().filter(idempotent).collect::<Vec<_>>())?;
            let Event::Read { client, payload, .. } = events[at] else { return None };
            events.push(Event::Read { client, offset: 1_000_000, payload });
        }
        Kind::Reordered => {
            let of = |index: usize| match events[index] {
                Event::Read { payload, .. } => is_idempotent(events, payload).map(|client| (client, payload)),
                _ => None,
            };
            let last: Vec<usize> =
                places(&|event| matches!(event, Event::Read { client, .. } if client.0 == LAST_READER));
            let pairs =
                last.iter().enumerate().flat_map(|(at, one)| last[at + 1..].iter().map(move |two| (*one, *two)));
            let pairs: Vec<(usize, usize)> = pairs
                .filter(|(one, two)| matches!((of(*one), of(*two)), (Some(one), Some(two)) if one.0 == two.0))
                .collect();
            let (one, two) = *pairs.get(choice % pairs.len().max(1))?;
            let (of_one, of_two) = (of(one)?.1, of(two)?.1);
            for event in events.iter_mut() {
                match event {
                    Event::Read { payload, .. } | Event::Acked { payload, .. } if *payload == of_one => {
                        *payload = of_two
                    }
                    Event::Read { payload, .. } | Event::Acked { payload, .. } if *payload == of_two => {
                        *payload = of_one
                    }
                    _ => {}
                }
            }
        }
    }
    Some(())
}

const KINDS: [Kind; 8] = [
    Kind::Lost,
    Kind::Duplicate,
    Kind::Reordered,
    Kind::Gap,
    Kind::Changed,
    Kind::Unexpected,
    Kind::NonMonotonic,
    Kind::HighWatermarkBack,
];

proptest! {
    #[test]
    fn a_correct_history_has_no_anomaly_and_each_planted_one_is_found(
        steps in prop::collection::vec(step(), 0..120),
        choice in any::<usize>(),
    ) {
        let events = Model::of(&steps);
        prop_assert_eq!(check(&events), vec![]);
        for kind in KINDS {
            let mut events = events.clone();
            if plant(kind, &mut events, choice).is_some() {
                let found = check(&events);
                prop_assert!(found.iter().any(|anomaly| anomaly.kind == kind), "{:?} not in {:?}", kind, found);
                for anomaly in found {
                    prop_assert!(anomaly.events.iter().all(|event| *event < events.len()));
                }
            }
        }
    }
}

/// Otherwise nothing might have been planted at all.
#[test]
fn each_kind_can_be_planted() {
    let send = |producer, fate| Step::Send(producer, fate);
    let mut steps = vec![send(0, Fate::Acked), send(0, Fate::Acked), send(1, Fate::Acked), send(0, Fate::Acked)];
    steps.extend([Step::Watermark, Step::Read(0, 4), Step::Read(1, 4)]);
    let events = Model::of(&steps);
    for kind in KINDS {
        for choice in 0..10 {
            let mut planted = events.clone();
            assert!(plant(kind, &mut planted, choice).is_some(), "{kind:?}");
            assert!(check(&planted).iter().any(|anomaly| anomaly.kind == kind), "{kind:?}, place {choice}");
        }
    }
}

/// In time that grows with the history and little more: with the square of it this would take hours.
#[test]
fn a_long_history_is_checked() {
    let steps: Vec<Step> = (0..400_000u32)
        .map(|number| match number % 4 {
            3 => Step::Read(number as usize / 4 % CONSUMERS, 4),
            _ => Step::Send(number % 4, Fate::Acked),
        })
        .collect();
    let events = Model::of(&steps);
    assert!(events.len() > 1_000_000, "{}", events.len());
    assert_eq!(check(&events), vec![]);
}
