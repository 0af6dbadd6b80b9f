//! Reasons for the rules about sequence numbers: what the trees do when a rule is broken.
//!
//! These tests are about `lsm-tree`. If one fails after an update of it, a rule in `lsm/tree.rs` may have become
//! unnecessary or different.

use lsm_tree::{AbstractTree, AnyTree, Config, SequenceNumberCounter};

use crate::support::Scratch;

fn tree(
    directory: &Scratch,
    name: &str,
    sequence: &SequenceNumberCounter,
    visible: &SequenceNumberCounter,
) -> AnyTree {
    let path = directory.path().join(name);
    let config = Config::new(path, sequence.clone(), visible.clone());
    config.open().expect("a tree opens")
}

#[test]
fn a_flush_would_publish_a_batch_that_is_half_inserted() {
    let directory = Scratch::new("rule-1");
    let sequence = SequenceNumberCounter::new(1);
    let (shared, dummy) = (sequence.clone(), SequenceNumberCounter::default());
    let shared = SequenceNumberCounter::new(shared.get());
    let one = tree(&directory, "one", &sequence, &shared);
    let two = tree(&directory, "two", &sequence, &dummy);
    let _ = one.insert("x", "earlier", sequence.next());
    // A batch of two keys is numbered, and its first key inserted.
    let number = sequence.next();
    let _ = two.insert("a", "1", number);
    one.flush_active_memtable(0).expect("flush");
    assert!(shared.get() > number, "the flush raised what is visible");
    let instant = shared.get();
    assert!(two.get("a", instant).expect("get").is_some());
    assert!(
        two.get("b", instant).expect("get").is_none(),
        "half a batch"
    );
    // With a dummy, only the engine raises the visible number.
    two.flush_active_memtable(0).expect("flush");
    assert!(dummy.get() > 0, "this one was raised instead");
}

#[test]
fn a_rotation_between_number_and_insertion_would_hide_a_key() {
    let directory = Scratch::new("rule-2");
    let sequence = SequenceNumberCounter::new(1);
    let tree = tree(
        &directory,
        "t",
        &sequence,
        &SequenceNumberCounter::default(),
    );
    let _ = tree.insert("x", "earlier", sequence.next());
    let number = sequence.next();
    tree.flush_active_memtable(0).expect("flush");
    let _ = tree.insert("y", "between", sequence.next());
    tree.rotate_memtable().expect("something to rotate");
    let _ = tree.insert("k", "value", number);
    let seen = tree.get("k", number + 1).expect("get");
    assert!(seen.is_none(), "an acknowledged write is missed");
}
