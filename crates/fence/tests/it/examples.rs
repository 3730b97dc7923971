//! The examples run.

#[cfg(feature = "http")]
#[path = "../../examples/axum_service.rs"]
mod axum_service;
#[cfg(feature = "sqlite")]
#[path = "../../examples/sqlite_row.rs"]
mod sqlite_row;

#[cfg(feature = "http")]
#[test]
fn axum_service() {
    axum_service::main().unwrap();
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_row() {
    sqlite_row::main().unwrap();
}
