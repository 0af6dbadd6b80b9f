//! `$text` finds the documents, with the scores, that a reading of all documents finds.
//!
//! The words of the documents have no stems and are no stop words, so the oracle needs neither: it splits at spaces, folds
//! case, and adds up the scores by the formula. Some documents are there before the index, some come and change behind it.

use std::collections::BTreeMap;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory};

/// Generated databases of a run.
const DATABASES: Effort = Effort {
    fast: 2,
    long: 30,
    soak: 600,
};

const WORDS: [&str; 8] = [
    "red", "RED", "green", "Green", "blue", "zinc", "lava", "odd",
];

fn text(random: &mut Random) -> String {
    let words = (0..1 + random.below(6)).map(|_| *random.pick(&WORDS));
    words.collect::<Vec<_>>().join(" ")
}

fn document(random: &mut Random, id: i64) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", id);
    out.append("k", random.int(3));
    for name in ["a", "b"] {
        match random.below(5) {
            0 => {}
            1 => {
                let texts = (0..random.below(3)).map(|_| Value::from(text(random)));
                out.append(name, texts.collect::<Vec<_>>());
            }
            2 => {
                out.append(name, doc! {"x": text(random), "y": 5});
            }
            3 => {
                let inner = array![doc! {"x": text(random)}, text(random), 7];
                out.append(name, inner);
            }
            _ => {
                out.append(name, text(random));
            }
        }
    }
    out.finish()
}

/// The weights of an index; the key `$**` is that of all other strings.
type Weights = BTreeMap<String, f64>;

fn strings(value: ValueRef<'_>, path: &str, out: &mut Vec<(String, String)>) {
    match value {
        ValueRef::String(text) => out.push((path.to_owned(), text.to_owned())),
        ValueRef::Array(array) => array.iter().for_each(|item| strings(item, path, out)),
        ValueRef::Document(inner) => {
            for element in inner {
                strings(element.value(), &format!("{path}.{}", element.name()), out);
            }
        }
        _ => {}
    }
}

/// A generated search.
struct Search {
    terms: Vec<&'static str>,
    negated: Vec<&'static str>,
    phrases: Vec<String>,
    negated_phrases: Vec<String>,
    case: bool,
}

impl Search {
    fn random(random: &mut Random) -> Self {
        let phrase = |random: &mut Random| {
            let words = [*random.pick(&WORDS), *random.pick(&WORDS)];
            words[..1 + usize::from(random.below(2) == 0)].join(" ")
        };
        let some = |chance: u64, random: &mut Random| -> Vec<&'static str> {
            let count = if random.below(chance) == 0 { 1 } else { 0 };
            (0..count).map(|_| *random.pick(&WORDS)).collect()
        };
        Self {
            terms: (0..random.below(4)).map(|_| *random.pick(&WORDS)).collect(),
            negated: some(3, random),
            phrases: (0..random.below(6) / 4).map(|_| phrase(random)).collect(),
            negated_phrases: (0..random.below(6) / 5).map(|_| phrase(random)).collect(),
            case: random.below(4) == 0,
        }
    }

    fn written(&self) -> String {
        let mut out: Vec<String> = self.terms.iter().map(|&term| term.to_owned()).collect();
        out.extend(self.negated.iter().map(|term| format!("-{term}")));
        out.extend(self.phrases.iter().map(|phrase| format!("\"{phrase}\"")));
        let negated = self.negated_phrases.iter();
        out.extend(negated.map(|phrase| format!("-\"{phrase}\"")));
        out.join(" ")
    }

    fn folded(&self, text: &str) -> String {
        if self.case {
            text.to_owned()
        } else {
            text.to_lowercase()
        }
    }

    /// Returns the score of a document; `None` if it does not match.
    fn score(&self, weights: &Weights, document: &Document) -> Option<f64> {
        let mut found = Vec::new();
        for element in document.iter() {
            strings(element.value(), element.name(), &mut found);
        }
        let weight = |path: &str| weights.get(path).or_else(|| weights.get("$**")).copied();
        found.retain(|(path, _)| weight(path).is_some());
        let words = self.phrases.iter().flat_map(|phrase| phrase.split(' '));
        let wanted: Vec<&str> = self.terms.iter().copied().chain(words).collect();
        let has = |word: &str| {
            let word = self.folded(word);
            let mut texts = found.iter().map(|(_, text)| self.folded(text));
            texts.any(|text| text.split(' ').any(|own| own == word))
        };
        let has_phrase = |phrase: &String| {
            let mut texts = found.iter().map(|(_, text)| self.folded(text));
            texts.any(|text| text.contains(&self.folded(phrase)))
        };
        let passes = wanted.iter().any(|word| has(word))
            && !self.negated.iter().any(|word| has(word))
            && self.phrases.iter().all(has_phrase)
            && !self.negated_phrases.iter().any(has_phrase);
        if !passes {
            return None;
        }
        let mut terms: Vec<String> = wanted.iter().map(|word| word.to_lowercase()).collect();
        terms.sort();
        terms.dedup();
        let mut score = 0.0;
        for term in &terms {
            for (path, text) in &found {
                let text = text.to_lowercase();
                let all: Vec<&str> = text.split(' ').collect();
                let count = all.iter().filter(|word| *word == term).count();
                let frequency: f64 = (0..count).map(|at| 0.5_f64.powi(at as i32)).sum();
                let share = 0.5 + 0.5 * count as f64 / all.len() as f64;
                let bonus = if text == *term { 1.1 } else { 1.0 };
                score += weight(path).unwrap_or(0.0) * frequency * share * bonus;
            }
        }
        Some(score)
    }
}

fn index(random: &mut Random) -> (Document, Document, Weights) {
    let (key, weights) = match random.below(4) {
        0 => (doc! {"a": "text"}, doc! {}),
        1 => (doc! {"k": 1, "a": "text", "b.x": "text"}, doc! {"a": 7}),
        2 => (doc! {"$**": "text", "k": -1}, doc! {"b": 3}),
        _ => (
            doc! {"a": "text", "b": "text", "a.x": "text"},
            doc! {"b": 2, "a.x": 5},
        ),
    };
    let mut all = Weights::new();
    let texts = key.iter().filter(|part| part.value().as_str().is_some());
    all.extend(texts.map(|part| (part.name().to_owned(), 1.0)));
    for weight in weights.iter() {
        let number = weight.value().as_exact_i64().unwrap_or(1);
        all.insert(weight.name().to_owned(), number as f64);
    }
    (key, weights, all)
}

fn create(fixture: &mut Fixture, name: &str, key: &Document, weights: &Document) {
    let language = if weights.is_empty() {
        "english"
    } else {
        "none"
    };
    let index = doc! {
        "key": key.clone(), "name": "t", "weights": weights.clone(), "default_language": language,
    };
    fixture.run(doc! {"createIndexes": name, "indexes": array![index]});
}

fn compare(fixture: &mut Fixture, random: &mut Random, weights: &Weights, has_prefix: bool) {
    let documents = fixture.all(doc! {"find": "c"});
    for _ in 0..30 {
        let search = Search::random(random);
        let mut filter = DocumentBuilder::new();
        let operand = doc! {"$search": search.written(), "$caseSensitive": search.case};
        filter.append("$text", operand);
        let k = random.int(3);
        let by_k = has_prefix || random.below(2) == 0;
        if by_k {
            filter.append("k", k);
        }
        let filter = filter.finish();
        let selected =
            |document: &Document| !by_k || document.get("k").as_exact_i64() == Some(k.into());
        let mut expected: Vec<(i64, f64)> = documents
            .iter()
            .filter(|document| selected(document))
            .filter_map(|document| {
                let id = document.get("_id").as_exact_i64()?;
                Some((id, search.score(weights, document)?))
            })
            .collect();
        expected.sort_by_key(|(id, _)| *id);
        let score = doc! {"_id": 1, "s": doc! {"$meta": "textScore"}};
        let rows = fixture.all(doc! {
            "find": "c", "filter": filter.clone(), "projection": score, "sort": doc! {"_id": 1},
        });
        let what = format!("{} of {weights:?}", search.written());
        assert_eq!(rows.len(), expected.len(), "{what}");
        for (row, (id, score)) in rows.iter().zip(&expected) {
            assert_eq!(row.get("_id").as_exact_i64(), Some(*id), "{what}");
            let ValueRef::Double(found) = row.get("s") else {
                panic!("{row:?}");
            };
            assert!(
                (found - score).abs() < 1e-9 * score.max(1.0),
                "{what}: {found} {score}"
            );
        }
        let counted = fixture.run(doc! {"count": "c", "query": filter.clone()});
        let count = i64::try_from(expected.len()).unwrap();
        assert_eq!(counted.get("n").as_exact_i64(), Some(count), "{what}");
        let sorted = fixture.all(doc! {
            "find": "c", "filter": filter, "sort": doc! {"s": doc! {"$meta": "textScore"}, "_id": 1},
            "projection": doc! {"s": doc! {"$meta": "textScore"}},
        });
        let scores = sorted.iter().map(|row| match row.get("s") {
            ValueRef::Double(score) => score,
            other => panic!("{other:?}"),
        });
        assert!(scores.is_sorted_by(|a, b| a >= b), "{what}");
    }
}

#[test]
fn text_searches_find_what_a_reading_of_all_documents_finds() {
    for seed in 0..DATABASES.requested() {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let (key, options, weights) = index(&mut random);
        let has_prefix = key.iter().next().is_some_and(|first| first.name() == "k");
        let (before, behind) = (40, 80);
        let documents: Vec<Value> = (0..before)
            .map(|id| document(&mut random, id).into())
            .collect();
        fixture.run(doc! {"insert": "c", "documents": documents});
        create(&mut fixture, "c", &key, &options);
        let documents: Vec<Value> = (before..behind)
            .map(|id| document(&mut random, id).into())
            .collect();
        fixture.run(doc! {"insert": "c", "documents": documents});
        compare(&mut fixture, &mut random, &weights, has_prefix);
        for _ in 0..20 {
            let id = random.int(80);
            let (selector, other) = (doc! {"_id": id}, document(&mut random, i64::from(id)));
            if random.below(3) == 0 {
                let deletion = doc! {"q": selector, "limit": 1};
                fixture.run(doc! {"delete": "c", "deletes": array![deletion]});
            } else {
                let replacement = doc! {"q": selector, "u": other, "upsert": true};
                fixture.run(doc! {"update": "c", "updates": array![replacement]});
            }
        }
        compare(&mut fixture, &mut random, &weights, has_prefix);
        let validated = fixture.run(doc! {"validate": "c"});
        let is_valid = matches!(validated.get("valid"), ValueRef::Bool(true));
        assert!(is_valid, "{validated:?}");
    }
}

/// More terms than an index is scanned for one by one.
#[test]
fn a_search_may_have_any_number_of_terms() {
    let mut fixture = Fixture::new();
    create(&mut fixture, "c", &doc! {"a": "text"}, &doc! {});
    let documents = array![
        doc! {"_id": 1, "a": "w7 w8 red"},
        doc! {"_id": 2, "a": "w999"},
        doc! {"_id": 3, "a": "blue"},
    ];
    fixture.run(doc! {"insert": "c", "documents": documents});
    let words: Vec<String> = (0..1000).map(|at| format!("w{at}")).collect();
    let find = |words: &[String]| {
        let text = doc! {"$search": words.join(" ")};
        doc! {"find": "c", "filter": doc! {"$text": text}, "projection": doc! {"_id": 1}}
    };
    assert_eq!(fixture.all(find(&words)).len(), 2);
    assert_eq!(fixture.all(find(&words[..8])), [doc! {"_id": 1}]);
}

#[test]
fn a_text_index_is_there_after_a_restart() {
    let directory = TemporaryDirectory::new();
    let find = |search: &str| {
        let text = doc! {"$search": search};
        doc! {"find": "c", "filter": doc! {"$text": text}, "projection": doc! {"_id": 1}}
    };
    {
        let mut fixture = Fixture::open(&directory.0);
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "a": "red"}]});
        create(&mut fixture, "c", &doc! {"a": "text"}, &doc! {});
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 2, "a": "red lava"}]});
    }
    let mut fixture = Fixture::open(&directory.0);
    assert_eq!(fixture.all(find("red")).len(), 2);
    assert_eq!(fixture.all(find("lava")), [doc! {"_id": 2}]);
    fixture.run(doc! {"update": "c", "updates": array![doc! {"q": doc! {"_id": 2}, "u": doc! {}}]});
    assert_eq!(fixture.all(find("lava")).len(), 0);
    let validated = fixture.run(doc! {"validate": "c"});
    assert!(matches!(validated.get("valid"), ValueRef::Bool(true)));
}
