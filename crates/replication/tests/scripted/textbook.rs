//! The example every text on replication begins with: log ends of 5, 5 and 4 make a high watermark of 4.

use highwater_replication::{Acks, Effect, Produced, WaitToken};
use highwater_storage::Offset;

use crate::cluster::{CONSUMER, consume, effects, fetch, produce, replica};

#[test]
fn the_smallest_log_end_of_the_in_sync_replicas_is_the_high_watermark() {
    let [mut leader, mut second, mut third] = [1, 2, 3].map(replica);
    for token in 0..4 {
        produce(&mut leader, "a book", Acks::Leader, token);
    }
    assert_eq!(produce(&mut leader, "the fifth", Acks::All, 5), Produced::Waiting);

    // The second replica takes all five, the third four; their next fetches tell the leader so.
    fetch(&mut leader, 2, &mut second, 5);
    fetch(&mut leader, 3, &mut third, 4);
    let ends = [&leader, &second, &third].map(|partition| partition.log().end());
    assert_eq!(ends, [Offset(5), Offset(5), Offset(4)]);
    fetch(&mut leader, 2, &mut second, 0);
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!(leader.status().high_watermark, Offset(4));
    assert_eq!(consume(&mut leader, 0), [0, 1, 2, 3]);

    // A consumer waits for the fifth record, and its producer for the acknowledgement.
    assert_eq!(consume(&mut leader, 4), [0i64; 0]);
    leader.watch_fetch(WaitToken(6), CONSUMER, Offset(4));
    let waits = |effect: &Effect| !matches!(effect, Effect::ProduceDone { .. } | Effect::WakeFetch { .. });
    assert!(effects(&mut leader).iter().all(waits));

    // The third replica reaches 5.
    fetch(&mut leader, 3, &mut third, 5);
    assert_eq!((third.log().end(), leader.status().high_watermark), (Offset(5), Offset(4)), "not told yet");
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!(leader.status().high_watermark, Offset(5));
    assert_eq!(consume(&mut leader, 4), [4]);
    let told = effects(&mut leader);
    let acknowledged = |effect: &Effect| matches!(effect, Effect::ProduceDone { token: WaitToken(5), result: Ok(done) } if done.base_offset == Offset(4));
    assert!(told.iter().any(acknowledged), "{told:?}");
    assert!(told.iter().any(|effect| matches!(effect, Effect::WakeFetch { token: WaitToken(6) })), "{told:?}");

    // The followers hear of it with the answers to their next fetches.
    fetch(&mut leader, 2, &mut second, 0);
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!([second.status().high_watermark, third.status().high_watermark], [Offset(5); 2]);
}
