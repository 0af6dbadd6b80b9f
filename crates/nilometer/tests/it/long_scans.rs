//! Scans of ordinary collections so long that several threads read them, beside changes of what is read.

use std::collections::HashSet;

use nilometer_bson::{Document, Value, array, doc};

use crate::support::{Fixture, cursor};

const COUNT: i32 = 9_000;

fn insert(fixture: &mut Fixture, ids: std::ops::Range<i32>) {
    let documents: Vec<Value> = ids.map(|n| doc! {"_id": n, "r": n % 7}.into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
}

fn delete(fixture: &mut Fixture, filter: Document) {
    let all = doc! {"q": filter, "limit": 0};
    fixture.run(doc! {"delete": "c", "deletes": array![all]});
}

fn ids(batch: &[Document]) -> impl Iterator<Item = i64> {
    let id = |document: &Document| document.get("_id").as_exact_i64();
    batch
        .iter()
        .map(move |document| id(document).expect("an _id"))
}

#[test]
fn every_document_that_stays_is_returned_once() {
    let mut fixture = Fixture::new();
    insert(&mut fixture, 0..COUNT);
    // Ids that are missing, before and behind what one thread reads first.
    delete(
        &mut fixture,
        doc! {"_id": doc! {"$gte": 1_000, "$lt": 1_500}},
    );
    delete(
        &mut fixture,
        doc! {"_id": doc! {"$gte": 5_500, "$lt": 7_500}},
    );
    for filter in [doc! {}, doc! {"r": doc! {"$ne": 3}}] {
        let find = doc! {"find": "c", "filter": filter.clone(), "batchSize": 400};
        let reply = fixture.run(find);
        let (mut id, _, batch) = cursor(&reply, "firstBatch");
        let mut found: Vec<i64> = ids(&batch).collect();
        let mut step = 0;
        while id != 0 {
            step += 1;
            // Before what was read and far behind it.
            delete(
                &mut fixture,
                doc! {"_id": doc! {"$in": array![step, COUNT - step]}},
            );
            insert(&mut fixture, COUNT + step..COUNT + step + 1);
            let size = 200 + step % 3 * 200;
            let more = doc! {"getMore": id, "collection": "c", "batchSize": size};
            let reply = fixture.run(more);
            let (next, _, batch) = cursor(&reply, "nextBatch");
            found.extend(ids(&batch));
            id = next;
        }
        let once: HashSet<i64> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len());
        assert!(found.is_sorted());
        let stays = fixture.all(doc! {"find": "c", "filter": filter, "hint": doc! {"_id": 1}});
        for id in ids(&stays).filter(|id| *id < i64::from(COUNT)) {
            assert!(once.contains(&id), "{id} was not returned");
        }
        delete(&mut fixture, doc! {"_id": doc! {"$gte": COUNT}});
    }
}
