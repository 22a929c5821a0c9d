//! Memory books of one slice: a cap, and what its processes have been granted of it.
//!
//! Memory is reserved before the driver is asked for it. So two processes that race for the last
//! bytes meet here, one after the other, and only one can win. What is granted stays granted
//! until it is given back or its process ends, used or not:
//! `reserved = sum over processes of (granted - released)`, and `reserved <= cap`, except that
//! what processes already held when the daemon came back is counted even above the cap, which
//! is then simply full.

use gpuslice_wire::units::Bytes;

/// The books of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    cap: Bytes,
    reserved: Bytes,
}

impl Account {
    pub(crate) const fn new(cap: Bytes) -> Account {
        Account {
            cap,
            reserved: Bytes::ZERO,
        }
    }
    pub(crate) const fn cap(&self) -> Bytes {
        self.cap
    }
    pub(crate) const fn reserved(&self) -> Bytes {
        self.reserved
    }
    /// What can still be granted.
    pub(crate) const fn left(&self) -> Bytes {
        self.cap.saturating_sub(self.reserved)
    }

    /// Grants as much of `wish` as there is.
    ///
    /// # Errors
    /// What is left, if that is less than `need`; nothing is granted then.
    pub(crate) fn reserve(&mut self, need: Bytes, wish: Bytes) -> Result<Bytes, Bytes> {
        let left = self.left();
        if need > left {
            return Err(left);
        }
        let granted = wish.max(need).min(left);
        self.hold(granted);
        Ok(granted)
    }

    /// Counts what a returning process has already, whether it fits or not.
    pub(crate) fn hold(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_add(bytes);
    }

    /// Takes back what a process had.
    pub(crate) fn release(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_between_need_and_wish_and_never_above_the_cap() {
        let mut books = Account::new(Bytes(100));
        assert_eq!(books.reserve(Bytes(10), Bytes(40)), Ok(Bytes(40)));
        assert_eq!(books.reserve(Bytes(10), Bytes(90)), Ok(Bytes(60)));
        assert_eq!(books.reserve(Bytes(1), Bytes(1)), Err(Bytes(0)));
        assert_eq!(books.reserve(Bytes(0), Bytes(5)), Ok(Bytes(0)));
        books.release(Bytes(7));
        assert_eq!(books.reserve(Bytes(8), Bytes(u64::MAX)), Err(Bytes(7)));
        assert_eq!(
            books.reserve(Bytes(7), Bytes(0)),
            Ok(Bytes(7)),
            "a wish below the need"
        );
        assert_eq!(
            books.reserve(Bytes(u64::MAX), Bytes(u64::MAX)),
            Err(Bytes(0))
        );
    }

    #[test]
    fn what_comes_back_is_counted_even_above_the_cap() {
        let mut books = Account::new(Bytes(100));
        books.hold(Bytes(150));
        assert_eq!((books.left(), books.reserved()), (Bytes(0), Bytes(150)));
        books.release(Bytes(60));
        assert_eq!(books.left(), Bytes(10));
    }
}
