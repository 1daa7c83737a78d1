use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

use highwater_replication::{BrokerId, EpochEnd, Isolation};
use highwater_storage::LeaderEpoch;

/// A partition of batches of one record and `batch_bytes` bytes each.
struct Fake {
    state: Mutex<FakeState>,
    batch_bytes: usize,
}

#[derive(Default)]
struct FakeState {
    end: i64,
    watches: BTreeMap<u64, (Arc<Alarm>, usize)>,
    next_token: u64,
    initial: u32,
    asked: u32,
    unwatched: u32,
    high_watermark: i64,
    diverging: bool,
    refuse: bool,
    superseded: u32,
    failure: Option<ReadFailure>,
    silent: bool,
}

impl Fake {
    fn with(end: i64, batch_bytes: usize) -> Arc<Self> {
        let state = FakeState { end, high_watermark: end, ..FakeState::default() };
        Arc::new(Self { state: Mutex::new(state), batch_bytes })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FakeState> {
        self.state.lock().expect("no panic under the lock")
    }

    fn change(&self, change: impl FnOnce(&mut FakeState)) {
        let mut state = self.state();
        change(&mut state);
        let watches = std::mem::take(&mut state.watches);
        drop(state);
        for (alarm, place) in watches.into_values() {
            alarm.ring(place);
        }
    }
}

impl Source for Fake {
    fn ask(self: &Arc<Self>, question: Question, slot: Slot<Answer<Self>>) {
        let mut state = self.state();
        state.asked += 1;
        state.initial += u32::from(question.initial);
        if state.silent {
            return;
        }
        if state.refuse {
            drop(state);
            slot.fill(Err(FetchError::NotLeader { leader: None, leader_epoch: LeaderEpoch(3) }));
            return;
        }
        let end = Offset(state.end);
        let mut grant = FetchGrant::new(end, Offset(state.high_watermark), Offset::ZERO, LeaderEpoch(3));
        if state.diverging {
            grant.diverging = Some(EpochEnd { epoch: LeaderEpoch(2), end: Offset(1) });
        }
        let watching = match question.watch {
            Some(watch) if end <= question.request.from => {
                state.next_token += 1;
                let token = state.next_token;
                state.watches.insert(token, watch);
                Some(Watching::new(Arc::clone(self), WaitToken(token)))
            }
            _ => None,
        };
        drop(state);
        slot.fill(Ok(Granted { grant, watching }));
    }

    fn unwatch(self: &Arc<Self>, token: WaitToken) {
        let mut state = self.state();
        state.unwatched += 1;
        state.watches.remove(&token.0);
    }

    fn read(
        &self,
        grant: &FetchGrant,
        from: Offset,
        max_bytes: usize,
        at_least_one: bool,
        _committed: bool,
    ) -> Result<Chunk, ReadFailure> {
        let mut state = self.state();
        if state.superseded > 0 {
            state.superseded -= 1;
            return Err(ReadFailure::Superseded);
        }
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let fits = (max_bytes / self.batch_bytes).max(usize::from(at_least_one));
        let count = fits.min(usize::try_from(grant.upper - from).expect("asked below upper"));
        let next = from + i64::try_from(count).expect("small");
        Ok(Chunk { bytes: vec![7; count * self.batch_bytes], next: (count > 0).then_some(next), aborted: Vec::new() })
    }
}

fn wanted(source: &Arc<Fake>, from: i64, max_bytes: usize) -> Wanted<Fake> {
    let request = FetchRequest {
        by: Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
        current_leader_epoch: None,
        last_fetched_epoch: None,
        from: Offset(from),
    };
    Wanted { source: Arc::clone(source), request, max_bytes }
}

fn limits(max_bytes: usize, min_bytes: usize, wait_ms: u64) -> Limits {
    Limits { max_bytes, min_bytes, until: Instant::now() + Duration::from_millis(wait_ms) }
}

fn lengths(served: &[Served]) -> Vec<usize> {
    let length = |served: &Served| match served {
        Served::Granted(_, records) => records.as_ref().len(),
        other => panic!("not served: {other:?}"),
    };
    served.iter().map(length).collect()
}

#[tokio::test]
async fn the_first_batch_comes_whole_and_the_others_obey_the_limits() {
    let readers = Readers::new(1, usize::MAX);
    let (empty, big, small) = (Fake::with(0, 10), Fake::with(5, 2_000), Fake::with(5, 10));
    let request = || vec![wanted(&empty, 0, 1), wanted(&big, 0, 1), wanted(&small, 0, 1), wanted(&big, 0, 1)];
    let served = serve(request(), limits(1, 1, 1_000), &readers).await;
    assert_eq!(lengths(&served), [0, 2_000, 0, 0]);
    // Room for more in the request, but not in the first partition; then the request itself is full.
    let request = vec![wanted(&small, 0, 25), wanted(&small, 0, 1_000), wanted(&big, 0, 10_000)];
    assert_eq!(lengths(&serve(request, limits(65, 1, 1_000), &readers).await), [20, 40, 0]);
}

#[tokio::test]
async fn waits_for_data_then_answers_and_deregisters_everywhere() {
    let readers = Readers::new(1, usize::MAX);
    let (one, other) = (Fake::with(3, 10), Fake::with(4, 10));
    let request = vec![wanted(&one, 3, 100), wanted(&other, 4, 100)];
    let task = tokio::spawn(async move { serve(request, limits(100, 1, 60_000), &readers).await });
    while one.state().watches.is_empty() || other.state().watches.is_empty() {
        tokio::task::yield_now().await;
    }
    other.change(|state| state.end = 6);
    let served = tokio::time::timeout(Duration::from_secs(10), task).await.expect("answered").expect("no panic");
    assert_eq!(lengths(&served), [0, 20]);
    assert!(one.state().watches.is_empty() && other.state().watches.is_empty());
    assert_eq!((one.state().unwatched, other.state().unwatched), (1, 0), "what rang is not taken off again");
    assert_eq!((one.state().initial, other.state().initial), (1, 1), "progress counts once");
}

#[tokio::test]
async fn collects_until_min_bytes_reading_nothing_twice() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(1, 10);
    let request = vec![wanted(&source, 0, 1_000)];
    let task = tokio::spawn(async move { serve(request, limits(1_000, 35, 60_000), &readers).await });
    for end in 2..=4 {
        while source.state().watches.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(!task.is_finished());
        source.change(|state| state.end = end);
    }
    let served = tokio::time::timeout(Duration::from_secs(10), task).await.expect("answered").expect("no panic");
    assert_eq!(lengths(&served), [40]);
}

#[tokio::test]
async fn the_deadline_answers_empty_with_the_latest_high_watermark() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(3, 10);
    let request = vec![wanted(&source, 3, 100)];
    let started = Instant::now();
    let task = tokio::spawn(async move { serve(request, limits(100, 1, 80), &readers).await });
    while source.state().watches.is_empty() {
        tokio::task::yield_now().await;
    }
    source.state().high_watermark = 99;
    let served = task.await.expect("no panic");
    assert!(started.elapsed() >= Duration::from_millis(75));
    assert!(matches!(&served[..], [Served::Granted(grant, records)]
        if grant.high_watermark == Offset(99) && records.as_ref().is_empty()));
    assert!(source.state().watches.is_empty());
}

#[tokio::test]
async fn errors_and_divergence_answer_at_once() {
    let readers = Readers::new(1, usize::MAX);
    for spoil in [
        (|state| state.refuse = true) as fn(&mut FakeState),
        |state| state.diverging = true,
        |state| state.silent = true,
        |state| {
            state.end = 4;
            state.failure = Some(ReadFailure::Corrupt)
        },
    ] {
        let (quiet, spoilt) = (Fake::with(3, 10), Fake::with(3, 10));
        spoil(&mut spoilt.state());
        let request = vec![wanted(&quiet, 3, 100), wanted(&spoilt, 3, 100)];
        let served = serve(request, limits(100, 1, 60_000), &readers);
        let served = tokio::time::timeout(Duration::from_secs(10), served).await.expect("at once");
        assert!(!matches!(&served[1], Served::Granted(grant, _) if grant.diverging.is_none()), "{:?}", served[1]);
        assert_eq!(lengths(&served[..1]), [0]);
    }
}

#[tokio::test]
async fn a_change_of_role_ends_the_wait() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(3, 10);
    let request = vec![wanted(&source, 3, 100)];
    let task = tokio::spawn(async move { serve(request, limits(100, 1, 60_000), &readers).await });
    while source.state().watches.is_empty() {
        tokio::task::yield_now().await;
    }
    source.change(|state| state.refuse = true);
    let served = tokio::time::timeout(Duration::from_secs(10), task).await.expect("answered").expect("no panic");
    assert!(matches!(served[0], Served::Refused(FetchError::NotLeader { .. })));
}

#[tokio::test]
async fn a_read_overtaken_by_a_truncation_is_granted_anew_but_not_for_ever() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(3, 10);
    source.state().superseded = 2;
    let served = serve(vec![wanted(&source, 0, 100)], limits(100, 1, 10_000), &readers).await;
    assert_eq!(lengths(&served), [30]);
    source.state().superseded = u32::MAX;
    let served = serve(vec![wanted(&source, 0, 100)], limits(100, 1, 10_000), &readers).await;
    assert!(matches!(served[0], Served::Unreadable(_, ReadFailure::Superseded)));
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_no_watch() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(3, 10);
    let request = vec![wanted(&source, 3, 100)];
    let task = tokio::spawn(async move { serve(request, limits(100, 1, 60_000), &readers).await });
    while source.state().watches.is_empty() {
        tokio::task::yield_now().await;
    }
    task.abort();
    assert!(task.await.is_err());
    assert!(source.state().watches.is_empty());
}

#[tokio::test]
async fn without_a_wait_everything_is_asked_once() {
    let readers = Readers::new(1, usize::MAX);
    let source = Fake::with(3, 10);
    for (min_bytes, wait_ms) in [(0, 10_000), (1, 0)] {
        let asked = source.state().asked;
        let served = serve(vec![wanted(&source, 3, 100)], limits(100, min_bytes, wait_ms), &readers).await;
        assert_eq!(lengths(&served), [0]);
        assert_eq!(source.state().asked, asked + 1);
    }
    assert!(serve(Vec::<Wanted<Fake>>::new(), limits(100, 1, 10_000), &readers).await.is_empty());
}

/// Answers that nobody takes yet leave less for the next, down to the one batch that each may have.
#[tokio::test]
async fn what_all_answers_hold_is_bounded() {
    let readers = Readers::new(1, 100);
    let source = Fake::with(50, 10);
    let ask = async || serve(vec![wanted(&source, 0, 70)], limits(70, 1, 0), &readers).await;
    let (first, second, third) = (ask().await, ask().await, ask().await);
    assert_eq!([lengths(&first), lengths(&second), lengths(&third)], [[70], [30], [10]]);
    // A second partition gets nothing of what is not there; a follower gets what it asks for.
    let both = serve(vec![wanted(&source, 0, 70), wanted(&source, 0, 70)], limits(70, 1, 0), &readers).await;
    assert_eq!(lengths(&both), [10, 0]);
    let mut follower = wanted(&source, 0, 70);
    follower.request.by = Fetcher::Follower { id: BrokerId(2), broker_epoch: None, log_start: Offset::ZERO };
    assert_eq!(lengths(&serve(vec![follower], limits(70, 1, 0), &readers).await), [70]);
    drop((second, third, both));
    assert_eq!(lengths(&ask().await), [30]);
    drop(first);
    assert_eq!(lengths(&ask().await), [70]);
}
