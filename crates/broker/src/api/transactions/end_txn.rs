//! EndTxn (26): a transaction commits or aborts.

use highwater_groups::Producer;
use highwater_groups::transactions::{TransactionAnswer, TransactionRequest};
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ProducerId};

use super::{ErrorCode, RequestContext, told_before};
use crate::transactions;

const FENCED_SINCE: i16 = 2;
/// From this version on the producer goes on with the epoch that the answer tells (KIP-890).
const BUMPS_SINCE: i16 = 5;

pub(crate) async fn handle(context: &RequestContext, request: EndTxnRequest) -> EndTxnResponse {
    let id = request.transactional_id.to_string();
    let asked = TransactionRequest::End {
        id: id.clone(),
        producer: Producer { id: request.producer_id.0, epoch: request.producer_epoch },
        commits: request.committed,
        bumps: context.version >= BUMPS_SINCE,
    };
    let ended = match transactions::ask(&context.broker, &id, asked).await {
        TransactionAnswer::Producer(ended) => ended.map_err(|why| why.code()),
        _ => Err(ErrorCode::UnknownServerError.number()),
    };
    answer(context.version, ended)
}

fn answer(version: i16, ended: Result<Producer, i16>) -> EndTxnResponse {
    let none = EndTxnResponse::default();
    let none =
        if version >= BUMPS_SINCE { none.with_producer_id(ProducerId(-1)).with_producer_epoch(-1) } else { none };
    match ended {
        Ok(Producer { id, epoch }) if version >= BUMPS_SINCE => {
            none.with_producer_id(ProducerId(id)).with_producer_epoch(epoch)
        }
        Ok(_) => none,
        Err(code) => {
            let code = ErrorCode::from_number(code).unwrap_or(ErrorCode::UnknownServerError);
            none.with_error_code(told_before(FENCED_SINCE, version, code).number())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiKey;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        for version in 0..=5 {
            let done = answer(version, Ok(Producer { id: 7, epoch: 3 }));
            let fenced = answer(version, Err(90));
            assert_eq!((done.error_code, fenced.error_code), (0, if version < 2 { 47 } else { 90 }));
            if version >= 5 {
                assert_eq!((done.producer_id.0, done.producer_epoch), (7, 3));
                assert_eq!((fenced.producer_id.0, fenced.producer_epoch), (-1, -1));
            }
            for response in [done, fenced] {
                encodes(ApiKey::EndTxn, &response, version);
            }
        }
    }
}
