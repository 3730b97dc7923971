//! The tables of the SQL stores, for those whose users may not make them.

/// The kinds of database of which [`schema`] knows the statements in this build.
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

/// The statements that make a store's tables in a database of this kind (`postgres`, `mysql`), to be run by somebody who
/// may; `None` if this build knows none. Where the store's user may make them, it does so by itself.
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
