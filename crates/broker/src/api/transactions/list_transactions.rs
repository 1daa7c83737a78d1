//! ListTransactions (66): the transactional ids that this broker coordinates.

use std::collections::BTreeSet;

use highwater_groups::records::TransactionStatus;
use highwater_groups::transactions::{
    TransactionAnswer, TransactionDescription, TransactionRefused, TransactionRequest,
};
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{ListTransactionsRequest, ListTransactionsResponse, ProducerId, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use regex::{Regex, RegexBuilder};

use super::{ErrorCode, RequestContext};

/// The most that a pattern may take in memory.
const PATTERN_BYTES_MAX: usize = 1 << 20;

pub(crate) async fn handle(context: &RequestContext, request: &ListTransactionsRequest) -> ListTransactionsResponse {
    let mut all = Vec::new();
    for answer in context.broker.transactions.ask_all(|| TransactionRequest::List).await.into_iter().flatten() {
        match answer {
            TransactionAnswer::Listed(Ok(listed)) => all.extend(listed),
            TransactionAnswer::Listed(Err(TransactionRefused::NotCoordinator)) => {}
            TransactionAnswer::Listed(Err(why)) => {
                return ListTransactionsResponse::default().with_error_code(why.code());
            }
            _ => {}
        }
    }
    answer(request, all, context.broker.services.clock.now().0)
}

fn answer(
    request: &ListTransactionsRequest,
    all: Vec<TransactionDescription>,
    now_ms: i64,
) -> ListTransactionsResponse {
    let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
    let Ok(pattern) = pattern.map(whole).transpose() else {
        return ListTransactionsResponse::default().with_error_code(ErrorCode::InvalidRegularExpression.number());
    };
    let named = request.state_filters.iter().map(|name| (name, TransactionStatus::named(name)));
    let (known, unknown): (Vec<_>, Vec<_>) = named.partition(|(_, status)| status.is_some());
    // Each once, however often it is named.
    let unknown: BTreeSet<StrBytes> = unknown.into_iter().map(|(name, _)| name.clone()).collect();
    // Looked up, not searched: a request may name half a million of them, and be asked of as many transactional ids.
    let mut statuses: Vec<_> = known.into_iter().filter_map(|(_, status)| status).collect();
    statuses.sort_unstable_by_key(|&status| status as i8);
    statuses.dedup();
    let producers: BTreeSet<i64> = request.producer_id_filters.iter().map(|id| id.0).collect();
    let goes_in = |one: &TransactionDescription| {
        let runs_ms = now_ms.saturating_sub(one.start_timestamp_ms);
        one.status != TransactionStatus::Dead
            && (producers.is_empty() || producers.contains(&one.producer.id))
            && (request.state_filters.is_empty() || statuses.contains(&one.status))
            && (request.duration_filter < 0 || runs_ms > request.duration_filter)
            && pattern.as_ref().is_none_or(|pattern| pattern.is_match(&one.id))
    };
    let states = all.into_iter().filter(goes_in).map(|one| {
        TransactionState::default()
            .with_transactional_id(TransactionalId(StrBytes::from_string(one.id)))
            .with_producer_id(ProducerId(one.producer.id))
            .with_transaction_state(StrBytes::from_static_str(one.status.name()))
    });
    ListTransactionsResponse::default()
        .with_unknown_state_filters(unknown.into_iter().collect())
        .with_transaction_states(states.collect())
}

/// A pattern that is to match the whole id.
fn whole(pattern: &str) -> Result<Regex, regex::Error> {
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
    // By itself as well: a closing bracket too many would go with the one put before it.
    build(pattern)?;
    build(&format!("^(?:{pattern})$"))
}

#[cfg(test)]
mod tests {
    use highwater_groups::Producer;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered_and_filters_are_kept_to() {
        let one = |id: &str, producer: i64, status, start_timestamp_ms| TransactionDescription {
            id: id.into(),
            producer: Producer { id: producer, epoch: 0 },
            status,
            timeout_ms: 1000,
            start_timestamp_ms,
            partitions: Vec::new(),
        };
        let all = vec![
            one("a", 1, TransactionStatus::Ongoing, 900),
            one("ab", 2, TransactionStatus::CompleteCommit, 500),
            one("b", 3, TransactionStatus::Ongoing, 100),
        ];
        let ids = |request: &ListTransactionsRequest| -> Vec<String> {
            let response = answer(request, all.clone(), 1000);
            for version in 0..=2 {
                encodes(ApiKey::ListTransactions, &response, version);
            }
            response.transaction_states.iter().map(|one| one.transactional_id.to_string()).collect()
        };
        // Absent in the versions before.
        let request = || ListTransactionsRequest::default().with_duration_filter(-1);
        assert_eq!(ids(&request()), ["a", "ab", "b"]);
        assert_eq!(ids(&request().with_state_filters(vec![name("Ongoing")])), ["a", "b"]);
        assert_eq!(ids(&request().with_producer_id_filters(vec![ProducerId(2), ProducerId(9)])), ["ab"]);
        assert_eq!(ids(&request().with_duration_filter(100)), ["ab", "b"]);
        for (pattern, expected) in
            [("a.*", &["a", "ab"][..]), ("a|b", &["a", "b"]), ("", &["a", "ab", "b"]), ("x", &[])]
        {
            assert_eq!(ids(&request().with_transactional_id_pattern(Some(name(pattern)))), expected, "{pattern}");
        }
        let odd = answer(&request().with_state_filters(vec![name("Odd")]), all.clone(), 1000);
        assert_eq!((odd.unknown_state_filters, odd.transaction_states.len()), (vec![name("Odd")], 0));
        for bad in ["(", "a{1000}{1000}{1000}"] {
            let refused = answer(&request().with_transactional_id_pattern(Some(name(bad))), all.clone(), 1000);
            assert_eq!(refused.error_code, 128, "{bad}");
        }
    }
}
