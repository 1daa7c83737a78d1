use std::collections::BTreeMap;

use super::*;

fn brokers(count: i32) -> Vec<BrokerId> {
    (1..=count).map(|id| BrokerId(id * 10)).collect()
}

#[test]
fn placement_is_even_distinct_and_goes_on_where_it_stopped() {
    for total in 1..=6 {
        let brokers = brokers(total);
        for factor in 1..=usize::try_from(total).unwrap() {
            for seed in [0, 7 << 32 | 5, u64::MAX, 0x1234_5678_9abc_def0] {
                let count = total * 4;
                let all = place(0, count, factor, &brokers, seed);
                let mut leads = BTreeMap::new();
                let mut holds = BTreeMap::new();
                for replicas in &all {
                    assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), factor, "{replicas:?}");
                    *leads.entry(replicas[0]).or_insert(0) += 1;
                    replicas.iter().for_each(|id| *holds.entry(*id).or_insert(0) += 1);
                }
                assert!(leads.values().all(|&led| led == 4), "{total} brokers: {leads:?}");
                if factor <= 2 || factor == brokers.len() {
                    let held = holds.values().collect::<BTreeSet<_>>();
                    let (least, most) = (held.first().unwrap(), held.last().unwrap());
                    assert!(**most - **least <= 2 * i32::try_from(factor).unwrap(), "{total}, {factor}: {holds:?}");
                }
                // Grown in three steps it is the same.
                let mut grown = place(0, 1, factor, &brokers, seed);
                grown.extend(place(1, total, factor, &brokers, seed));
                grown.extend(place(1 + total, count - 1 - total, factor, &brokers, seed));
                assert_eq!(grown, all, "{total} brokers, {factor} replicas");
            }
        }
    }
}

/// The example in the comment of Kafka's `AdminUtils`: 5 brokers, 10 partitions, 3 replicas, from the first on.
#[test]
fn placement_is_kafkas() {
    let brokers: Vec<BrokerId> = (0..5).map(BrokerId).collect();
    let expected = ["0 1 2", "1 2 3", "2 3 4", "3 4 0", "4 0 1", "0 2 3", "1 3 4", "2 4 0", "3 0 1", "4 1 2"];
    let placed: Vec<String> = place(0, 10, 3, &brokers, 0)
        .iter()
        .map(|replicas| replicas.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(placed, expected);
}

#[test]
fn ids_are_random_version_4_and_never_begin_with_a_dash() {
    let ids: BTreeSet<String> = (0..1000)
        .map(|_| {
            let id = random_id();
            assert_eq!((id.0[6] >> 4, id.0[8] >> 6), (4, 2));
            id.to_string()
        })
        .collect();
    assert_eq!(ids.len(), 1000);
    assert!(ids.iter().all(|id| !id.starts_with('-')));
}

#[test]
fn names_are_kafkas() {
    for good in ["a", "-giveaway", "x-3", "__x", "A.b_c-9", &"x".repeat(249)] {
        assert_eq!(check_name(good), Ok(()), "{good}");
    }
    for bad in ["", ".", "..", "a/b", "a b", "ünï", "nul\0", "new\nline", &"x".repeat(250)] {
        let error = check_name(bad).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidTopicException, "{bad}");
        assert!(!error.to_string().contains('\0'));
    }
    let names = ["a.b".to_owned(), "c".to_owned()];
    assert_eq!(check_collision("a.b", &names), Err(AdminError::Exists("a.b".to_owned())));
    assert!(matches!(check_collision("a_b", &names), Err(AdminError::InvalidTopic(_))));
    assert_eq!(check_collision("a-b", &names), Ok(()));
}
