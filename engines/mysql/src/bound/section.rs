//! What the numbers of UUID_SHORT() mean in one run of the server; see [`counter`](super::counter).

use fencelock_core::Token;
use fencelock_sql::lease::MOST_TOKENS;

/// Numbers this far from the origin are not of its section.
pub(super) const FAR: u64 = 1 << 44;

/// Number `origin` is id `base`, and so on; numbers below `upto` are reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Section {
    pub(super) origin: u64,
    pub(super) base: u64,
    pub(super) upto: u64,
}

impl Section {
    /// The columns that name it in the table.
    pub(super) const fn numbers(&self) -> [u64; 2] {
        [self.origin, self.base]
    }

    /// The columns, for a prepared statement.
    pub(super) fn values(&self) -> [mysql_async::Value; 2] {
        self.numbers().map(mysql_async::Value::from)
    }

    /// The token of a number, the first of sixteen. `None` if the number is not of this section.
    pub(super) fn token(&self, number: u64) -> Option<Token> {
        let ahead = number.checked_sub(self.origin)?;
        let id = self.base.checked_add(ahead)?;
        let token = Token(id.checked_mul(u64::from(MOST_TOKENS))?);
        (ahead > 0 && ahead < FAR && token < Token::END).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_another_counter_makes_no_token() {
        let section = Section {
            origin: 1000,
            base: 50,
            upto: 1016,
        };
        assert_eq!(section.token(1001), Some(Token(51 * 16)));
        assert_eq!(section.token(5000), Some(Token(4050 * 16)));
        for foreign in [0, 999, 1000, 1000 + FAR, u64::MAX] {
            assert_eq!(section.token(foreign), None, "{foreign}");
        }
        let last = Section {
            base: Token::END.get() / 16 - 10,
            ..section
        };
        assert!(last.token(1009).is_some_and(|token| token < Token::END));
        assert_eq!(last.token(1010), None);
    }
}
