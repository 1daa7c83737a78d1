//! Repeatable choices for the tests.

/// Numbers below the bound that each call names, which must not be 0: the same ones for the same seed (xorshift).
pub(crate) fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    // A state of 0 would stay 0.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1);
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}
