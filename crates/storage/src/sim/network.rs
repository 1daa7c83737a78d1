//! What happens to messages between places.

use super::Random;

/// One-way links between all places, numbered from 0, each with chance of its own. All times are milliseconds of virtual
/// time; what is asked for lasts until a time, and nothing is lost, doubled or slow otherwise.
#[derive(Clone, Debug)]
pub struct Network {
    places: usize,
    latency_max_ms: i64,
    links: Vec<Link>,
    loss: Spell,
    doubling: Spell,
    slow_until: i64,
}

#[derive(Clone, Debug)]
struct Link {
    random: Random,
    cut_until: i64,
}

/// One in so many, until then.
#[derive(Clone, Copy, Debug)]
struct Spell {
    one_in: u64,
    until: i64,
}

/// What becomes of one copy of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives; another that is sent later may arrive before it.
    Arrives {
        /// After so long, at least a millisecond.
        after_ms: i64,
    },
    /// It does not.
    Lost,
}

impl Spell {
    const OVER: Self = Self { one_in: 1, until: i64::MIN };

    /// Draws in any case, so that what is asked for moves nothing else.
    fn strikes(self, now: i64, random: &mut Random) -> bool {
        let draw = random.draw();
        self.until > now && draw.is_multiple_of(self.one_in)
    }
}

impl Network {
    /// A network in order, where a message takes up to `latency_max_ms`, and 1 ms at least.
    pub fn new(seed: u64, places: usize, latency_max_ms: i64) -> Self {
        let link = |number: usize| {
            let (from, to) = ((number / places) as u64, (number % places) as u64);
            Link { random: Random::stream(seed, 0x1_0000 + from * 0x100 + to), cut_until: i64::MIN }
        };
        Self {
            places,
            latency_max_ms: latency_max_ms.max(1),
            links: (0..places * places).map(link).collect(),
            loss: Spell::OVER,
            doubling: Spell::OVER,
            slow_until: i64::MIN,
        }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        assert!(
            from < self.places && to < self.places,
            "no link from {from} to {to}: there are {} places",
            self.places
        );
        self.links.get_mut(from * self.places + to).expect("a link between any two places")
    }

    /// Until then nothing gets from one place to the other. The other way goes on: to hear is not to be heard.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn cut(&mut self, from: usize, to: usize, until: i64) {
        self.link(from, to).cut_until = until;
    }

    /// Whether nothing gets through now.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn is_cut(&self, now: i64, from: usize, to: usize) -> bool {
        assert!(
            from < self.places && to < self.places,
            "no link from {from} to {to}: there are {} places",
            self.places
        );
        self.links.get(from * self.places + to).is_some_and(|link| link.cut_until > now)
    }

    /// One in so many messages is lost, until then.
    pub fn lose(&mut self, one_in: u64, until: i64) {
        self.loss = Spell { one_in: one_in.max(1), until };
    }

    /// One in so many messages arrives twice, until then.
    pub fn double(&mut self, one_in: u64, until: i64) {
        self.doubling = Spell { one_in: one_in.max(1), until };
    }

    /// One in three messages takes up to ten times as long, until then: others overtake it.
    pub fn slow(&mut self, until: i64) {
        self.slow_until = until;
    }

    /// Everything works from now on.
    pub fn heal(&mut self) {
        self.links.iter_mut().for_each(|link| link.cut_until = i64::MIN);
        (self.loss, self.doubling, self.slow_until) = (Spell::OVER, Spell::OVER, i64::MIN);
    }

    /// What becomes of a message that is sent now: of it, and of its double if it has one.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn send(&mut self, now: i64, from: usize, to: usize) -> impl Iterator<Item = Fate> + use<> {
        let copies = 1 + usize::from(self.doubles(now, from, to));
        let fates = [(); 2].map(|()| {
            let after_ms = self.latency(now, from, to);
            if self.loses(now, from, to) { Fate::Lost } else { Fate::Arrives { after_ms } }
        });
        fates.into_iter().take(copies)
    }

    /// The steps of [`Network::send`], for who has to do something in between: how long a message takes.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn latency(&mut self, now: i64, from: usize, to: usize) -> i64 {
        let (most, may_be_slow) = (self.latency_max_ms, self.slow_until > now);
        let random = self.random(from, to);
        let slow = random.one_in(3) && may_be_slow;
        random.between(1, if slow { most * 10 } else { most })
    }

    /// Whether a message gets lost.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn loses(&mut self, now: i64, from: usize, to: usize) -> bool {
        let (loss, cut) = (self.loss, self.is_cut(now, from, to));
        loss.strikes(now, self.random(from, to)) || cut
    }

    /// Whether a message arrives twice.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn doubles(&mut self, now: i64, from: usize, to: usize) -> bool {
        let doubling = self.doubling;
        doubling.strikes(now, self.random(from, to))
    }

    /// The chance of a link, for what else may happen to its messages.
    ///
    /// # Panics
    /// If there are no such places.
    pub fn random(&mut self, from: usize, to: usize) -> &mut Random {
        &mut self.link(from, to).random
    }
}
