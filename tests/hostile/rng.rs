//! One random sequence per input: splitmix64 from the seed, the campaign's name and the input's number.

/// A small generator; the same start gives the same sequence on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence of one input. Inputs do not depend on each other, so that each replays alone.
    pub(crate) fn of(seed: u64, campaign: &str, number: u64) -> Self {
        let mut rng = Rng(seed);
        for byte in campaign.bytes() {
            rng.0 = rng.next() ^ u64::from(byte);
        }
        rng.0 ^= number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 where `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Mostly near nothing, sometimes at an edge of its type, else anything.
    pub(crate) fn odd_i64(&mut self) -> i64 {
        match self.below(8) {
            0 => i64::MAX - self.below(4) as i64,
            1 => i64::MIN + self.below(4) as i64,
            2 => i64::from(i32::MAX) + self.below(3) as i64 - 1,
            3 => i64::from(i32::MIN) + self.below(3) as i64 - 1,
            4 => 1 << self.below(63),
            5 => self.next() as i64,
            _ => self.below(12) as i64 - 4,
        }
    }
}
