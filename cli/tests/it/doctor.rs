//! `doctor`: what it says, and its exit codes.

use crate::bed::Bed;

#[test]
fn a_file_of_this_machine_is_fit() {
    let bed = Bed::new();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.out.contains("first come, first served"), "{told:?}");
    assert!(told.out.contains("for correctness: nothing"), "{told:?}");
    let json: serde_json::Value =
        serde_json::from_str(&bed.run(&["doctor", "--json"]).out).unwrap();
    assert_eq!(json["engine"], "sqlite");
    assert_eq!(json["fine"], true);
}

#[test]
fn a_store_that_cannot_be_asked_is_no_diagnosis() {
    let bed = Bed::new();
    let told = bed.run(&[
        "doctor",
        "--store",
        "redis://127.0.0.1:1?connect-timeout=300ms",
    ]);
    assert_eq!(told.code, 69, "{told:?}");
    let told = bed.run(&["doctor", "--store", "gopher:x"]);
    assert_eq!(told.code, 78, "{told:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_that_may_forget_is_told_so() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let bed = Bed::on(redis.url());
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(
        told.out.contains("a restart of the server forgets"),
        "{told:?}"
    );
    assert!(
        told.out.contains("change: CONFIG SET appendonly yes"),
        "{told:?}"
    );
    // For what only costs money it is good enough.
    let told = bed.run(&["doctor", "--purpose", "efficiency"]);
    assert_eq!(told.code, 0, "{told:?}");
    let told = bed.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(json["fine"], false);
    assert_eq!(json["findings"][0]["purpose"], "correctness");
    assert_eq!(json["promises"]["durability"], "volatile");

    // Somebody who mended it hears so: the server is asked as it is, not as it was.
    redis
        .command::<()>(&["CONFIG", "SET", "appendonly", "yes"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "appendfsync", "always"])
        .unwrap();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 0, "{told:?}");
    // What evicts keys is in the way again.
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "100mb"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.out.contains("noeviction"), "{told:?}");
}
