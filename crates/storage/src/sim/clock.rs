//! What a machine takes for the time.

/// A clock that may be wrong: it is set while it runs, and runs fast or slow. All times are milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead: i64,
    per_mille: i64,
    since: i64,
}

impl Clock {
    /// What it shows at `now`, which is true. Never ask for times before the last [`Clock::drift`].
    pub fn read(&self, now: i64) -> i64 {
        now + self.ahead + (now - self.since) * self.per_mille / 1_000
    }

    /// From `now` on it gains so much in each second, or loses it if negative. What it gained before stays.
    pub fn drift(&mut self, now: i64, per_mille: i64) {
        self.ahead = self.read(now) - now;
        (self.since, self.per_mille) = (now, per_mille);
    }

    /// Somebody sets it, ahead or back.
    pub fn step(&mut self, by: i64) {
        self.ahead += by;
    }
}
