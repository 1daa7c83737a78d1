//! Clients that do anything at any time: each is answered once, generations only grow, and what the log says is what is
//! told.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Doing {
    Join { client: u8, known: bool, is_static: bool, protocol: u8 },
    Sync { member: u8, leads: bool, stale: bool },
    Heartbeat { member: u8 },
    Leave { member: u8 },
    Commit { member: u8, offset: i64, transaction: Option<u8> },
    Decide { producer: u8, commits: bool },
    Pass { milliseconds: u64 },
    AppendsEnd(Option<Appended>),
    Delete,
    Restart,
}

fn doing() -> impl Strategy<Value = Doing> {
    let refused = [Appended::NotNow, Appended::TooLarge, Appended::Refused, Appended::Committed];
    let ends: Vec<_> = std::iter::once(None).chain(refused.map(Some)).collect();
    prop_oneof![
        8 => (0_u8..4, any::<bool>(), any::<bool>(), 0_u8..3)
            .prop_map(|(client, known, is_static, protocol)| Doing::Join { client, known, is_static, protocol }),
        8 => (0_u8..4, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(member, leads, stale)| Doing::Sync { member, leads, stale }),
        4 => (0_u8..4).prop_map(|member| Doing::Heartbeat { member }),
        2 => (0_u8..4).prop_map(|member| Doing::Leave { member }),
        4 => (0_u8..4, 0_i64..100, prop::option::of(0_u8..2))
            .prop_map(|(member, offset, transaction)| Doing::Commit { member, offset, transaction }),
        2 => (0_u8..2, any::<bool>()).prop_map(|(producer, commits)| Doing::Decide { producer, commits }),
        4 => (0_u64..15_000).prop_map(|milliseconds| Doing::Pass { milliseconds }),
        1 => prop::sample::select(ends).prop_map(Doing::AppendsEnd),
        1 => Just(Doing::Delete),
        1 => Just(Doing::Restart),
    ]
}

/// The random clients, and what they know.
#[derive(Default)]
struct Clients {
    rig: Option<Rig>,
    config: GroupConfig,
    ids: BTreeMap<u8, String>,
    asked: BTreeMap<Ticket, u8>,
    generation: i32,
    leader: String,
    /// The markers of transactions, and before which batch of the log each lies.
    markers: Vec<(usize, i64, bool)>,
}

impl Clients {
    fn new(config: GroupConfig) -> Self {
        Self { rig: Some(Rig::with(config.clone())), config, ..Self::default() }
    }

    fn rig(&mut self) -> &mut Rig {
        self.rig.as_mut().unwrap()
    }

    fn id(&self, client: u8) -> String {
        self.ids.get(&client).cloned().unwrap_or_default()
    }

    fn ask(&mut self, client: u8, request: Request) {
        let ticket = self.rig().ask(request);
        self.asked.insert(ticket, client);
    }

    /// The appends that were held back are committed.
    fn commit_held(&mut self) {
        for id in std::mem::take(&mut self.rig().held) {
            self.rig().input(Input::Appended(id, Appended::Committed));
        }
    }

    fn does(&mut self, number: usize, what: Doing) {
        match what {
            Doing::Join { client, known, is_static, protocol } => {
                let names = [&["range"][..], &["sticky", "range"], &["sticky"]][usize::from(protocol)];
                let join = Join {
                    member_id: if known { self.id(client) } else { String::new() },
                    group_instance_id: is_static.then(|| format!("static-{client}")),
                    fresh_id: number.to_string(),
                    protocols: names.iter().map(|&name| (name.to_owned(), subscription("books"))).collect(),
                    ..join(&format!("c{client}"))
                };
                self.ask(client, Request::Join(join));
            }
            Doing::Sync { member, leads, stale } => {
                let id = if leads { self.leader.clone() } else { self.id(member) };
                let given = self.ids.values().map(|id| (id.clone(), Bytes::from_static(b"part")));
                let member_at = at(&id, self.generation - i32::from(stale));
                let sync = Sync { member: member_at, assignments: given.collect(), ..Sync::default() };
                self.ask(member, Request::Sync(sync));
            }
            Doing::Heartbeat { member } => {
                self.ask(member, Request::Heartbeat(at(&self.id(member), self.generation)));
            }
            Doing::Leave { member } => {
                let members = vec![Leaving { member_id: self.id(member), group_instance_id: None }];
                self.ask(member, Request::Leave { group: "g".into(), members });
            }
            Doing::Commit { member, offset, transaction } => {
                let transaction = transaction.map(|id| Producer { id: id.into(), epoch: 0 });
                let known = at(&self.id(member), self.generation);
                let who = if transaction.is_some() { anonymous("g") } else { known };
                self.ask(member, Request::Commit(Commit { member: who, transaction, offsets: books(offset) }));
            }
            Doing::Decide { producer, commits } => {
                // The log has it behind all that it decides.
                self.commit_held();
                let (place, producer_id) = (self.rig().log.len(), i64::from(producer));
                self.markers.push((place, producer_id, commits));
                self.rig().input(Input::Marker { producer_id, commits });
            }
            Doing::Pass { milliseconds } => self.rig().passes_ms(milliseconds),
            Doing::AppendsEnd(how) => {
                self.commit_held();
                self.rig().appends_end = how;
            }
            Doing::Delete => self.ask(0, Request::DeleteGroup("g".into())),
            Doing::Restart => self.restart(),
        }
        self.hear();
    }

    /// Another coordinator takes over, from the log.
    fn restart(&mut self) {
        self.commit_held();
        self.hear();
        let told = (self.rig().offset("g", false), self.rig().offset("g", true));
        self.rig().input(Input::Resigned);
        self.hear();
        assert!(self.asked.is_empty(), "{:?} were left waiting", self.asked);
        let mut before = self.rig.take().unwrap();
        let mut next = Rig::loading(self.config.clone());
        (next.now, next.tickets, next.appends_end) = (before.now, before.tickets, before.appends_end);
        let log = std::mem::take(&mut before.log);
        for place in 0..=log.len() {
            for &(_, producer_id, commits) in self.markers.iter().filter(|(at, ..)| *at == place) {
                next.input(Input::Load(LoadedBatch::Marker { producer_id, commits }));
            }
            let Some((transaction, records)) = log.get(place) else { break };
            let transaction = transaction.map(|producer| producer.id);
            next.input(Input::Load(LoadedBatch::Records { transaction, records: records.clone() }));
        }
        next.log = log;
        next.input(Input::Loaded);
        assert_eq!((next.offset("g", false), next.offset("g", true)), told);
        self.rig = Some(next);
        self.generation = 0;
    }

    /// Reads what was answered since.
    fn hear(&mut self) {
        for (ticket, answer) in std::mem::take(&mut self.rig().answers) {
            let Some(client) = self.asked.remove(&ticket) else { panic!("{ticket:?} was never asked") };
            match answer {
                Answer::Join(Ok(joined)) => {
                    assert!(joined.generation >= self.generation, "{joined:?}");
                    let is_told = joined.members.iter().any(|member| member.member_id == joined.member_id);
                    assert_eq!(is_told, !joined.members.is_empty(), "{joined:?}");
                    self.generation = joined.generation;
                    self.leader = joined.leader;
                    self.ids.insert(client, joined.member_id);
                }
                // Whoever joins now makes a new one.
                Answer::DeletedGroup(Ok(())) => self.generation = 0,
                Answer::Join(Err((Refused::MemberIdRequired, id))) => {
                    self.ids.insert(client, id);
                }
                Answer::Join(Err((Refused::UnknownMemberId | Refused::FencedInstanceId, _))) => {
                    self.ids.remove(&client);
                }
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn everyone_is_answered_once_and_the_log_tells_what_was_told(steps in prop::collection::vec(doing(), 1..120)) {
        let mut clients = Clients::new(GroupConfig { members_max: 3, ..GroupConfig::default() });
        for (number, step) in steps.into_iter().enumerate() {
            clients.does(number, step);
        }
        // Nobody waits for ever: sessions and rebalances end, and the log's appends do.
        clients.does(0, Doing::AppendsEnd(Some(Appended::Committed)));
        clients.does(0, Doing::Pass { milliseconds: 600_000 });
        prop_assert!(clients.asked.is_empty(), "{:?} are left waiting", clients.asked);
        if !clients.rig().groups().is_empty() {
            prop_assert_eq!(clients.rig().describe().members, [], "they outlive their sessions");
        }
    }
}
