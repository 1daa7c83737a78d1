//! What transactional producers ask, and who looks after them.

use highwater_tests::requests::Field;

use super::Generator;

/// Transactional ids that are known from the beginning.
pub(crate) const TRANSACTIONAL_IDS: &[&str] = &["tx-a", "tx-b", "tx-c"];
const ODD_IDS: &[&str] = &["nobody's-tx", ""];

/// What is said to be in a transaction is in one for as long as a run may last.
const TIMEOUT_MS: i64 = 900_000;

impl Generator<'_> {
    /// Some transactional id, which the producer ids and epochs behind it are then about.
    pub(super) fn transactional_id(&mut self) -> String {
        self.transactional = self.pick(TRANSACTIONAL_IDS, ODD_IDS).to_owned();
        self.transactional.clone()
    }

    /// A number of these requests.
    pub(super) fn transaction_number(&mut self, field: &Field) -> Option<i64> {
        let known = self.world.transactional(&self.transactional);
        let number = match (self.api, &*field.name) {
            ("InitProducerId", "TransactionTimeoutMs") => self.pick(&[TIMEOUT_MS], &[0, -1, i64::from(i32::MAX)]),
            ("InitProducerId", "ProducerId") => {
                // Who names what it has is the producer of that id still; who names nothing starts anew.
                self.names_itself = known.is_some() && self.random.once_in(3);
                match known.filter(|_| self.names_itself) {
                    Some((id, _)) => self.pick(&[id], &[5_000_000]),
                    None => self.pick(&[-1], &[5_000_000]),
                }
            }
            ("InitProducerId", "ProducerEpoch") => match known.filter(|_| self.names_itself) {
                Some((_, epoch)) => self.pick(&[i64::from(epoch)], &[i64::from(epoch) - 1, i64::from(epoch) + 1]),
                None => self.pick(&[-1], &[3]),
            },
            ("WriteTxnMarkers", "ProducerId") => {
                // A producer without transactions: of the others the coordinator must know.
                let pick = self.random.below(2);
                self.plain = self.world.producer(pick);
                self.plain.map_or(4_000, |(id, _)| id)
            }
            ("WriteTxnMarkers", "ProducerEpoch") => {
                let epoch = self.plain.map_or(0, |(_, epoch)| i64::from(epoch));
                self.pick(&[epoch], &[epoch + 1])
            }
            ("WriteTxnMarkers", "CoordinatorEpoch") => self.pick(&[0], &[]),
            ("AddPartitionsToTxn" | "AddOffsetsToTxn" | "EndTxn" | "TxnOffsetCommit", "ProducerId") => {
                let id = known.map_or(4_000, |(id, _)| id);
                self.pick(&[id, id, id], &[5_000_000, -1])
            }
            ("AddPartitionsToTxn" | "AddOffsetsToTxn" | "EndTxn" | "TxnOffsetCommit", "ProducerEpoch") => {
                let epoch = known.map_or(0, |(_, epoch)| i64::from(epoch));
                self.pick(&[epoch, epoch, epoch], &[epoch - 1, epoch + 1])
            }
            ("AddPartitionsToTxn", "VerifyOnly") => self.pick(&[0, 0, 1], &[]),
            ("TxnOffsetCommit", "CommittedOffset") => self.pick(&[0, 1, 5, 1000], &[-1]),
            ("TxnOffsetCommit", "CommittedLeaderEpoch") => self.pick(&[-1, 0], &[]),
            ("ListTransactions", "ProducerIdFilters") => {
                let id = *self.random.choose(TRANSACTIONAL_IDS);
                let known = self.world.transactional(id).map_or(4_000, |(id, _)| id);
                self.pick(&[known], &[5_000_000])
            }
            ("ListTransactions", "DurationFilter") => self.pick(&[-1], &[10_000_000]),
            _ => return None,
        };
        Some(number)
    }

    /// A text of these requests: `None` if the field is none of theirs.
    pub(super) fn transaction_text(&mut self, field: &Field, nullable: bool) -> Option<Option<String>> {
        let text = match (self.api, &*field.name) {
            ("Produce", "TransactionalId") => {
                self.is_transactional = self.random.once_in(4);
                if !self.is_transactional {
                    return Some(None);
                }
                self.transactional_id()
            }
            ("InitProducerId", "TransactionalId") => {
                if self.random.once_in(3) {
                    return Some(None);
                }
                self.transactional_id()
            }
            (_, "TransactionalId" | "TransactionalIds") => self.transactional_id(),
            ("ListTransactions", "StateFilters") => {
                self.pick(&["Ongoing", "CompleteCommit", "CompleteAbort", "Empty"], &["Nonsense"]).to_owned()
            }
            ("ListTransactions", "TransactionalIdPattern") => {
                if self.random.once_in(2) {
                    return Some(None);
                }
                self.pick(&["tx-.*", "tx-a", "", "none"], &["[", "tx-(a|b)"]).to_owned()
            }
            ("TxnOffsetCommit", "CommittedMetadata") if nullable && self.random.once_in(2) => return Some(None),
            ("TxnOffsetCommit", "CommittedMetadata") => self.metadata(),
            _ => return None,
        };
        Some(Some(text))
    }

    /// How many there are of something in these requests: `None` if the field is none of theirs.
    pub(super) fn transaction_count(&mut self, field: &Field) -> Option<usize> {
        let count = match (self.api, &*field.name) {
            ("AddPartitionsToTxn", "Transactions") | ("WriteTxnMarkers", "Markers") => 1,
            ("ListTransactions", _) => *self.random.choose(&[0, 0, 1, 2]),
            _ => return None,
        };
        Some(count)
    }
}
