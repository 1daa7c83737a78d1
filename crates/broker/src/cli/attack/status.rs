//! What the brokers say of the partitions, asked again and again.

use std::time::{Duration, Instant};

use kafka_protocol::messages::MetadataResponse;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::cluster::BROKERS;
use crate::driver::{Contact, Topic};

const INTERVAL: Duration = Duration::from_millis(100);

/// Where a partition stands, by the answer with the highest epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Nobody where it is none of the brokers.
    pub(super) leader: i32,
    pub(super) epoch: i32,
    pub(super) isr: Vec<i32>,
}

/// One round of questions.
#[derive(Clone, Debug)]
pub(super) struct Status {
    /// When it began.
    pub(super) asked: Instant,
    pub(super) partitions: Vec<Standing>,
    /// Whether all brokers answered, all the same, and each partition has a leader and all its replicas in sync.
    pub(super) full: bool,
}

/// Asks all brokers until the receivers are gone.
pub(super) fn watch(contact: Contact, topic: Topic) -> (watch::Receiver<Status>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(merge(Instant::now(), &[], topic));
    let task = tokio::spawn(async move {
        while !sender.is_closed() {
            let asked = Instant::now();
            let mut questions = JoinSet::new();
            for address in contact.brokers.clone() {
                let contact = contact.clone();
                questions.spawn(async move { contact.metadata(&address, topic.name).await.ok() });
            }
            let answers: Vec<MetadataResponse> = questions.join_all().await.into_iter().flatten().collect();
            sender.send_replace(merge(asked, &answers, topic));
            tokio::time::sleep(INTERVAL).await;
        }
    });
    (receiver, task)
}

fn merge(asked: Instant, answers: &[MetadataResponse], topic: Topic) -> Status {
    let mut full = answers.len() == BROKERS.len();
    let mut partitions = Vec::new();
    for partition in 0..topic.partitions {
        let told: Vec<Option<Standing>> = answers.iter().map(|answer| standing(answer, partition)).collect();
        let best = told.iter().flatten().max_by_key(|standing| standing.epoch).cloned().unwrap_or_default();
        let whole = BROKERS.contains(&best.leader) && best.isr == BROKERS;
        full &= whole && told.iter().all(|one| one.as_ref() == Some(&best));
        partitions.push(best);
    }
    Status { asked, partitions, full }
}

fn standing(answer: &MetadataResponse, partition: i32) -> Option<Standing> {
    let found = answer.topics.first()?.partitions.iter().find(|found| found.partition_index == partition)?;
    let mut isr: Vec<i32> = found.isr_nodes.iter().map(|node| node.0).collect();
    isr.sort_unstable();
    Some(Standing { leader: found.leader_id.0, epoch: found.leader_epoch, isr })
}
