//! Methods that set one field of a value that other crates build.

/// For each field, a method with its name.
macro_rules! setters {
    ($($field:ident: $value:ty),+ $(,)?) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $field.into();
            self
        }
    )+};
}

pub(super) use setters;
