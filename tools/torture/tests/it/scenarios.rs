//! The scenarios: each recipe must fail, and this library must hold.

use crate::torture;

#[test]
fn every_recipe_fails_and_ours_holds() {
    let ran = torture(&["--scenario", "all"]);
    let text = String::from_utf8(ran.stdout).unwrap();
    let count_of = |what: &str| text.matches(what).count();
    let listed = String::from_utf8(torture(&["--list"]).stdout).unwrap();
    let mut listed = listed
        .lines()
        .skip_while(|line| !line.starts_with("the scenarios"));
    listed.next();
    let count = listed.count();
    assert!(count >= 17, "{count} scenarios");
    assert_eq!(count_of("  the recipe FAILED: "), count, "{text}");
    assert_eq!(count_of("  fencelock HELD: "), count, "{text}");
    assert_eq!(ran.status.code(), Some(0), "{text}");
}
