//! The questions of a set, read from its file in `bench/sets`.
//!
//! ```json
//! {"queries": [{"name": "q1", "what": "…", "collection": "events", "sql": ["SELECT …"],
//!               "pipeline": [{"$group": …}], "time_series": [{"$group": …}]}]}
//! ```
//!
//! `size_max` is the largest set of which the question is asked: `$addToSet` may collect at most 100 MB, in MongoDB as here.
//! `pipeline` serves every layout that has no field of its own name. A string in a pipeline stands for the stages of that
//! name in the file's `parts`.

use nilometer_bson::{DocRef, Value, ValueRef, extjson};

use crate::target::Outcome;

/// One question.
pub(crate) struct Question {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) collection: String,
    /// The size of the largest set of which it is asked; `None` for any.
    pub(crate) size_max: Option<u64>,
    /// The pipeline of one layout.
    pub(crate) pipeline: Value,
}

/// Returns the questions of a file, as a layout asks them.
pub(crate) fn parse(text: &str, layout: &str) -> Outcome<Vec<Question>> {
    let file = extjson::parse_document(text).map_err(|e| e.to_string())?;
    let list = file.get("queries").as_array();
    let list = list.ok_or("a file without `queries`")?;
    let parts = file.get("parts").as_document();
    list.iter()
        .map(|value| question(value, layout, parts))
        .collect()
}

fn question(value: ValueRef<'_>, layout: &str, parts: Option<DocRef<'_>>) -> Outcome<Question> {
    let fields = value
        .as_document()
        .ok_or("a question that is no document")?;
    let text = |name: &str| text(fields, name);
    let own = fields.get(layout);
    let pipeline = match own.is_missing() {
        true => fields.get("pipeline"),
        false => own,
    };
    let Some(stages) = pipeline.as_array() else {
        return Err(format!("{} has no pipeline", text("name")?));
    };
    let mut pipeline = Vec::new();
    for stage in stages.iter() {
        let Some(part) = stage.as_str() else {
            pipeline.push(stage.to_value());
            continue;
        };
        let stages = parts.and_then(|parts| parts.get(part).as_array());
        let stages = stages.ok_or_else(|| format!("no part {part}"))?;
        pipeline.extend(stages.iter().map(|stage| stage.to_value()));
    }
    Ok(Question {
        name: text("name")?,
        what: text("what")?,
        collection: text("collection")?,
        size_max: fields
            .get("size_max")
            .as_exact_i64()
            .and_then(|size| u64::try_from(size).ok()),
        pipeline: Value::from(pipeline),
    })
}

fn text(fields: DocRef<'_>, name: &str) -> Outcome<String> {
    let text = fields.get(name).as_str();
    text.map(String::from)
        .ok_or_else(|| format!("a question without {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_may_have_its_own_pipeline() {
        let file = r#"{"queries": [{"name": "q", "what": "w", "collection": "c", "sql": "",
            "pipeline": [{"$match": {}}], "time_series": [{"$limit": 1}]}]}"#;
        let stage = |layout| {
            let question = parse(file, layout).unwrap().remove(0);
            extjson::value_to_relaxed(question.pipeline.as_ref())
        };
        assert_eq!(stage("ordinary"), r#"[{"$match":{}}]"#);
        assert_eq!(stage("time_series"), r#"[{"$limit":1}]"#);
        let file = r#"{"parts": {"few": [{"$limit": 2}]}, "queries": [{"name": "q", "what": "w",
            "collection": "c", "pipeline": ["few", {"$match": {}}]}]}"#;
        let question = parse(file, "ordinary").unwrap().remove(0);
        let text = extjson::value_to_relaxed(question.pipeline.as_ref());
        assert_eq!(text, r#"[{"$limit":2},{"$match":{}}]"#);
        assert!(parse("{}", "ordinary").is_err());
        assert!(parse(r#"{"queries": [{"name": "q"}]}"#, "ordinary").is_err());
    }
}
