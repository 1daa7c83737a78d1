//! Heals damaged logs: what has rotted here is fetched from another replica and put in its place, while the rest is served.
//!
//! A partition is noted when damage of it is found: at its opening, by a read, by the scrubber. One task looks at those that
//! are noted. What to ask of whom is the partition's to say, and whether the bytes are the right ones the log's; this module
//! knows connections and patience only.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_replication::{BrokerId, HealPlan};
use highwater_storage::{Damaged, HealError, Offset, TopicPartition, batches};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ReplicaState};
use kafka_protocol::messages::{self, FetchRequest, FetchResponse};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::api::ErrorCode;
use crate::client::Connection;
use crate::fetch_sessions::EPOCH_FINAL;
use crate::fetcher::{FETCH_VERSION, connected};
use crate::hosted::Hosted;
use crate::partitions::Partitions;
use crate::services::Services;

/// Between two rounds: other replicas may be away, and a read that meets damage again and again is no reason to hurry.
const PAUSE: Duration = Duration::from_secs(1);

/// After a round in which something could not be healed yet.
const RETRY: Duration = Duration::from_secs(5);

/// Partitions whose logs are damaged.
#[derive(Default)]
pub(crate) struct Rot {
    noted: Mutex<BTreeSet<TopicPartition>>,
    news: Notify,
}

impl Rot {
    /// Damage of this partition is known.
    pub(crate) fn note(&self, of: &TopicPartition) {
        self.noted().insert(of.clone());
        self.news.notify_one();
    }

    fn noted(&self) -> MutexGuard<'_, BTreeSet<TopicPartition>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Rot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rot").field("noted", &self.noted().len()).finish_non_exhaustive()
    }
}

/// Damage that no replica could help with: it is not tried again in this broker's life.
type GivenUp = HashSet<(PathBuf, u64)>;

/// The brokers that are asked in one round, and how they are reached.
#[derive(Default)]
struct Lenders {
    connections: HashMap<BrokerId, Option<Connection>>,
    /// Not reached: not tried again for every stretch there is, each of which would wait as long.
    away: HashSet<BrokerId>,
}

impl Lenders {
    async fn ask(
        &mut self,
        services: &Services,
        lender: BrokerId,
        request: &FetchRequest,
    ) -> Result<FetchResponse, String> {
        if self.away.contains(&lender) {
            return Err("it was not reached just now".to_owned());
        }
        let connection = self.connections.entry(lender).or_default();
        let answer = match connected(services, lender, "healer", connection).await {
            Ok(open) => open.send_version(request, FETCH_VERSION).await.map_err(|error| error.to_string()),
            Err(problem) => Err(problem),
        };
        if answer.is_err() {
            self.away.insert(lender);
        }
        answer
    }
}

/// Heals until the broker stops.
pub(crate) async fn run(services: Arc<Services>, partitions: Arc<Partitions>) {
    let mut given_up = GivenUp::new();
    loop {
        let noted = std::mem::take(&mut *services.rot.noted());
        let (mut again, mut lenders) = (false, Lenders::default());
        for of in noted {
            let Some(hosted) = partitions.get(&of) else { continue };
            if !heal(&services, &hosted, &mut lenders, &mut given_up).await {
                services.rot.noted().insert(of);
                again = true;
            }
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = services.rot.news.notified() => {}
            () = tokio::time::sleep(RETRY), if again => {}
        }
    }
}

/// Heals what can be healed now. False if there is something left to try later.
async fn heal(services: &Services, hosted: &Hosted, lenders: &mut Lenders, given_up: &mut GivenUp) -> bool {
    let asked = hosted.ask(|partition, _| (partition.log().damage().len(), partition.heal_plan())).await;
    let Some((damaged, plan)) = asked else { return true };
    let Some(plan) = plan else { return damaged == 0 };
    let mut is_done = damaged == plan.damaged.len();
    for damaged in &plan.damaged {
        let name = (damaged.segment.clone(), damaged.position);
        if given_up.contains(&name) {
            continue;
        }
        match heal_one(services, hosted, lenders, &plan, damaged).await {
            Outcome::Healed => {}
            Outcome::Later => is_done = false,
            Outcome::GivenUp => {
                given_up.insert(name);
            }
        }
    }
    is_done
}

enum Outcome {
    Healed,
    Later,
    GivenUp,
}

async fn heal_one(
    services: &Services,
    hosted: &Hosted,
    lenders: &mut Lenders,
    plan: &HealPlan,
    damaged: &Damaged,
) -> Outcome {
    let (of, file, position) = (hosted.topic_partition(), damaged.segment.display(), damaged.position);
    let mut later = false;
    for &lender in &plan.ask {
        let bytes = match fetch(services, hosted, lenders, plan, lender, damaged).await {
            Ok(bytes) => bytes,
            Err(problem) => {
                tracing::debug!(partition = %of, from = %lender, problem, "cannot fetch what is damaged here");
                later = true;
                continue;
            }
        };
        let healing = {
            let damaged = damaged.clone();
            move |partition: &mut highwater_replication::Partition, now| partition.heal(now, &damaged, &bytes)
        };
        match hosted.ask_slowly(healing).await {
            Some(Ok(())) => {
                tracing::info!(
                    partition = %of, %file, position, bytes = damaged.bytes, first_offset = damaged.offsets.start.0,
                    end_offset = damaged.offsets.end.0, from = %lender, "healed what had rotted; look at the disk"
                );
                return Outcome::Healed;
            }
            Some(Err(HealError::Misfit(misfit))) => {
                tracing::warn!(
                    partition = %of, %file, position, from = %lender, %misfit,
                    "what another replica has does not take the place of damage here"
                );
            }
            // It is healed or cut, or the partition closed itself; a disk that failed once may fail again.
            Some(Err(HealError::Unknown)) => later = true,
            Some(Err(error)) => {
                tracing::warn!(partition = %of, %file, position, %error, "cannot heal");
                later = true;
            }
            None => return Outcome::Healed,
        }
    }
    if later { Outcome::Later } else { Outcome::GivenUp }
}

/// The batches that a replica has for the damaged offsets: as many bytes as are damaged, give or take a batch.
async fn fetch(
    services: &Services,
    hosted: &Hosted,
    lenders: &mut Lenders,
    plan: &HealPlan,
    lender: BrokerId,
    damaged: &Damaged,
) -> Result<Vec<u8>, String> {
    let (mut bytes, mut from) = (Vec::new(), damaged.offsets.start);
    while from < damaged.offsets.end && (bytes.len() as u64) < damaged.bytes {
        let request = request(services, hosted, plan, from, damaged.bytes - bytes.len() as u64);
        let response = lenders.ask(services, lender, &request).await?;
        let part = response.responses.first().and_then(|topic| topic.partitions.first());
        let part = part.ok_or("an answer about nothing")?;
        if response.error_code != 0 || part.error_code != 0 {
            let code = if response.error_code != 0 { response.error_code } else { part.error_code };
            return Err(format!("answered with {:?} ({code})", ErrorCode::from_number(code)));
        }
        let records = part.records.clone().unwrap_or_default();
        let before = from;
        for batch in batches(&records) {
            let Ok(batch) = batch else { break };
            if batch.base_offset() >= damaged.offsets.end {
                from = damaged.offsets.end;
                break;
            }
            bytes.extend_from_slice(batch.bytes());
            from = batch.next_offset();
        }
        if from <= before {
            return Err("nothing there yet".to_owned());
        }
    }
    Ok(bytes)
}

fn request(services: &Services, hosted: &Hosted, plan: &HealPlan, from: Offset, left: u64) -> FetchRequest {
    let bytes_max = i32::try_from(left).unwrap_or(i32::MAX);
    let partition = FetchPartition::default()
        .with_partition(hosted.topic_partition().partition)
        .with_current_leader_epoch(plan.leader_epoch.0)
        .with_fetch_offset(from.0)
        .with_partition_max_bytes(bytes_max);
    let topic =
        FetchTopic::default().with_topic_id(Uuid::from_bytes(hosted.topic_id().0)).with_partitions(vec![partition]);
    // A follower that asked its leader as one would say that it holds no more than this.
    let me = if plan.leads { services.config.broker_id.0 } else { -1 };
    FetchRequest::default()
        .with_replica_state(ReplicaState::default().with_replica_id(messages::BrokerId(me)).with_replica_epoch(-1))
        .with_max_bytes(bytes_max)
        .with_session_epoch(EPOCH_FINAL)
        .with_topics(vec![topic])
}
