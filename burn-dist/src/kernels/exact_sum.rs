//! [`ExactSum`]: a sum that is never rounded.

/// A sum of integers times powers of two, as one long number: terms in any order, cut and spread in any way,
/// give the same number. Wide enough for 2^60 squares of any 64-bit float.
///
/// (A long accumulator: U. Kulisch and W. L. Miranker, "The arithmetic of the digital computer: a new
/// approach", SIAM Review 28, 1986.)
#[derive(Debug, Clone)]
pub struct ExactSum {
    /// Digits of 32 bits with room for carries, the lowest one first; all of them carry a sign.
    digits: Vec<i64>,
    /// Terms since carries were passed on.
    terms: u32,
}

/// What the lowest bit stands for.
const LOWEST: i32 = -68 * 32;
const DIGITS: usize = 136;
const DIGIT: i64 = (1 << 32) - 1;

impl Default for ExactSum {
    fn default() -> Self {
        Self {
            digits: vec![0; DIGITS],
            terms: 0,
        }
    }
}

impl ExactSum {
    /// Adds `value * 2^exponent`; `value` has at most 64 bits and a sign.
    pub fn add(&mut self, value: i128, exponent: i32) {
        debug_assert!(value.unsigned_abs() <= u128::from(u64::MAX));
        let place = (exponent - LOWEST) as usize;
        let mut rest = value << (place % 32);
        let digits = &mut self.digits[place / 32..][..3];
        digits[0] += rest as i64 & DIGIT;
        rest >>= 32;
        digits[1] += rest as i64 & DIGIT;
        digits[2] += (rest >> 32) as i64;
        self.terms += 1;
        if self.terms == 1 << 30 {
            self.carry();
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, mut other: Self) {
        self.carry();
        for (digit, other) in self.digits.iter_mut().zip(other.digits()) {
            *digit += other;
        }
        self.terms = 1;
    }

    /// Leaves each digit but the last with 32 bits and no sign.
    fn carry(&mut self) {
        let mut carried = 0;
        let (last, digits) = self.digits.split_last_mut().expect("invariant: digits");
        for digit in digits {
            let sum = *digit + carried;
            *digit = sum & DIGIT;
            carried = sum >> 32;
        }
        *last += carried;
        self.terms = 0;
    }

    /// Digits that can be added up over up to 2^30 sums, digit by digit.
    pub fn digits(&mut self) -> &[i64] {
        self.carry();
        &self.digits
    }

    /// From digits as [`digits`](Self::digits) gives them, or sums of such.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn from_digits(digits: Vec<i64>) -> Self {
        assert_eq!(digits.len(), DIGITS, "all digits");
        let mut sum = Self { digits, terms: 0 };
        sum.carry();
        sum
    }

    /// The square root of a sum that is not negative.
    pub fn sqrt(&self) -> f64 {
        let mut sum = self.clone();
        sum.carry();
        let Some(top) = sum.digits.iter().rposition(|&digit| digit != 0) else {
            return 0.0;
        };
        // The highest digits, at least 97 bits of them; those below do not reach the root's last bit.
        let lowest = top.saturating_sub(3);
        let digits = sum.digits[lowest..=top].iter().rev();
        let value = digits.fold(0u128, |value, &digit| (value << 32) | digit as u128);
        let exponent = LOWEST + 32 * lowest as i32;
        // An even exponent, halved in two steps: either may leave the range of f64 alone.
        let root = (value as f64).sqrt();
        let half = exponent / 2;
        root * 2f64.powi(half / 2) * 2f64.powi(half - half / 2)
    }
}
