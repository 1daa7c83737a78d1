//! Each anomaly in the smallest history that has it, and histories beside it that do not.

use highwater_checker::{Anomaly, Client, Event, Kind, Payload, check};

fn sent(client: u32, payload: u64) -> Event {
    Event::Sent { client: Client(client), payload: Payload(payload), idempotent: true }
}

fn sent_plainly(client: u32, payload: u64) -> Event {
    Event::Sent { client: Client(client), payload: Payload(payload), idempotent: false }
}

fn acked(payload: u64, offset: i64) -> Event {
    Event::Acked { payload: Payload(payload), offset }
}

fn read(client: u32, offset: i64, payload: u64) -> Event {
    Event::Read { client: Client(client), offset, payload: Payload(payload) }
}

fn told(client: u32, high_watermark: i64) -> Event {
    Event::Watermark { client: Client(client), high_watermark }
}

fn anomaly(kind: Kind, events: &[usize]) -> Anomaly {
    Anomaly { kind, events: events.to_vec() }
}

const FAILED: Event = Event::Failed { payload: Payload(7) };
const UNKNOWN: Event = Event::Unknown { payload: Payload(7) };

#[test]
fn anomalies_table() {
    type Row<'a> = (&'a str, Vec<Event>, Vec<Anomaly>);
    let two_sent = [sent(1, 7), sent(1, 8)];
    let after = |events: &[Event]| [&two_sent[..], events].concat();
    let starts_at = |offset| Event::Start { offset };
    let table: Vec<Row<'_>> = vec![
        ("nothing", vec![], vec![]),
        ("all is well", after(&[acked(7, 0), acked(8, 1), told(9, 2), read(9, 0, 7), read(9, 1, 8)]), vec![]),
        ("lost at the end", after(&[acked(7, 0), acked(8, 1), read(9, 0, 7)]), vec![anomaly(Kind::Lost, &[3])]),
        ("lost below what was read", after(&[acked(7, 0), read(9, 1, 8)]), vec![anomaly(Kind::Lost, &[2, 3])]),
        ("deleted, and not lost", after(&[acked(7, 0), starts_at(1), read(9, 1, 8)]), vec![]),
        ("deleted as the tester learned later", after(&[acked(7, 0), read(9, 1, 8), starts_at(1)]), vec![]),
        ("lost above the start", after(&[acked(8, 1), starts_at(1)]), vec![anomaly(Kind::Lost, &[2])]),
        ("neither acknowledged nor read", after(&[UNKNOWN]), vec![]),
        ("not known to be there, and there", after(&[UNKNOWN, read(9, 0, 7)]), vec![]),
        ("twice", after(&[read(9, 0, 7), read(9, 1, 7)]), vec![anomaly(Kind::Duplicate, &[2, 3])]),
        (
            "once where it was acknowledged, and once more",
            after(&[acked(7, 0), read(9, 0, 7), read(9, 2, 7)]),
            vec![anomaly(Kind::Duplicate, &[2, 4])],
        ),
        ("twice by a plain producer", vec![sent_plainly(1, 7), read(9, 0, 7), read(9, 1, 7)], vec![]),
        ("read by two", after(&[read(9, 0, 7), read(10, 0, 7)]), vec![]),
        ("in another order", after(&[read(9, 0, 8), read(9, 1, 7)]), vec![anomaly(Kind::Reordered, &[0, 1, 3, 2])]),
        (
            "in another order by a plain producer",
            vec![sent_plainly(1, 7), sent_plainly(1, 8), read(9, 0, 8), read(9, 1, 7)],
            vec![],
        ),
        ("in the order of two producers", vec![sent(1, 7), sent(2, 8), read(9, 0, 8), read(9, 1, 7)], vec![]),
        (
            "over one that another read",
            vec![sent(1, 6), sent(1, 7), sent(1, 8), read(8, 1, 7), read(9, 0, 6), read(9, 2, 8)],
            vec![anomaly(Kind::Gap, &[3, 4, 5])],
        ),
        ("over what nobody ever saw", after(&[read(9, 0, 7), read(9, 5, 8)]), vec![]),
        (
            "over what was deleted",
            vec![sent(1, 6), sent(1, 7), sent(1, 8), read(8, 1, 7), read(9, 0, 6), starts_at(2), read(9, 2, 8)],
            vec![],
        ),
        ("two at an offset", after(&[read(9, 0, 7), read(10, 0, 8)]), vec![anomaly(Kind::Changed, &[2, 3])]),
        (
            "another than acknowledged",
            after(&[acked(7, 0), read(9, 0, 8)]),
            vec![anomaly(Kind::Lost, &[2, 3]), anomaly(Kind::Changed, &[2, 3])],
        ),
        ("never sent", after(&[read(9, 0, 5)]), vec![anomaly(Kind::Unexpected, &[2])]),
        ("read before it was sent", vec![read(9, 0, 7), sent(1, 7)], vec![anomaly(Kind::Unexpected, &[0])]),
        ("refused and there", after(&[FAILED, read(9, 0, 7)]), vec![anomaly(Kind::Unexpected, &[2, 3])]),
        ("read again", after(&[read(9, 0, 7), read(9, 0, 7)]), vec![anomaly(Kind::NonMonotonic, &[2, 3])]),
        (
            "read backwards",
            after(&[read(9, 0, 7), read(9, 1, 8), read(9, 0, 7)]),
            vec![anomaly(Kind::NonMonotonic, &[3, 4])],
        ),
        ("told less", vec![told(9, 5), told(9, 4)], vec![anomaly(Kind::HighWatermarkBack, &[0, 1])]),
        ("told the same", vec![told(9, 5), told(9, 5), told(8, 3)], vec![]),
        (
            "told less than it had read",
            after(&[read(9, 0, 7), read(9, 1, 8), told(9, 1)]),
            vec![anomaly(Kind::HighWatermarkBack, &[3, 4])],
        ),
    ];
    for (name, events, expected) in table {
        assert_eq!(check(&events), expected, "{name}");
    }
}

#[test]
fn an_anomaly_is_told_by_its_events() {
    let events = [sent(1, 7), acked(7, 0), sent(1, 8), read(9, 0, 8)];
    let told: Vec<String> = check(&events).iter().map(|anomaly| anomaly.explain(&events).to_string()).collect();
    assert_eq!(
        told,
        [
            "Lost: 7 is acknowledged at 0 (event 1); then client 9 reads 8 at 0 (event 3)",
            "Changed: 7 is acknowledged at 0 (event 1); then client 9 reads 8 at 0 (event 3)"
        ]
    );
}
