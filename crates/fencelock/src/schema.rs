//! The tables of the SQL stores, for users who may not create them.

/// The kinds of database for which this build has a [`schema`].
///
/// ```
/// for kind in fencelock::schemas() {
///     assert!(fencelock::schema(kind).is_some());
/// }
/// ```
#[must_use]
pub fn schemas() -> Vec<&'static str> {
    vec![
        #[cfg(feature = "mysql")]
        "mysql",
        #[cfg(feature = "postgres")]
        "postgres",
    ]
}

/// The statements that create a store's tables in a database of this kind (`postgres`, `mysql`), for an administrator. `None`
/// if this build has none. If the store's user may create tables, fencelock does so by itself.
///
/// ```
/// if let Some(statements) = fencelock::schema("postgres") {
///     println!("{statements}");
/// }
/// ```
#[must_use]
pub fn schema(kind: &str) -> Option<String> {
    match kind {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Some(fencelock_mysql::schema("fencelock")),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Some(fencelock_postgres::schema().to_owned()),
        _ => None,
    }
}
