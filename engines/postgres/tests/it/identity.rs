//! Users of one database may find the tables in schemas of their own. Then they do not share locks.

use fencelock_core::StoreUrl;
use fencelock_testbed::Postgres;

use crate::engine;

async fn identity(url: &str) -> String {
    let url = StoreUrl::parse(url).unwrap();
    engine::connect(url).await.unwrap().identity()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schemas_are_two_stores() {
    let server = Postgres::start().unwrap();
    let at = |user: &str| format!("postgres://{user}@127.0.0.1:{}/lock", server.port());
    let usual = identity(&server.url()).await;
    assert!(!usual.contains("schema"), "{usual}");
    let users = "\
        CREATE ROLE one LOGIN; CREATE ROLE two LOGIN; CREATE ROLE three LOGIN; CREATE ROLE four LOGIN; \
        CREATE SCHEMA one AUTHORIZATION one; CREATE SCHEMA two AUTHORIZATION two; \
        GRANT ALL ON ALL TABLES IN SCHEMA public TO three; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO three; \
        ALTER ROLE four SET search_path = one; GRANT USAGE ON SCHEMA one TO four";
    server.psql("lock", users).unwrap();
    // Hides the tables of `public`, so that users with a schema of their own create theirs.
    for user in ["one", "two"] {
        let own = format!("ALTER ROLE {user} SET search_path = \"$user\"");
        server.psql("lock", &own).unwrap();
    }
    let (one, two) = (identity(&at("one")).await, identity(&at("two")).await);
    assert!(
        one.contains("schema \"one\"") && two.contains("schema \"two\""),
        "{one}; {two}"
    );
    assert_eq!(one, identity(&at("one")).await);
    // Users with the same tables share their locks.
    assert_eq!(usual, identity(&at("three")).await);
    let shared = "\
        GRANT ALL ON ALL TABLES IN SCHEMA one TO four; GRANT ALL ON ALL SEQUENCES IN SCHEMA one TO four";
    server.psql("lock", shared).unwrap();
    assert_eq!(one, identity(&at("four")).await);
}
