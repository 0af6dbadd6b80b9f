//! The names of the query language, for completion in the page's query box: from the tables that parse them, so that the
//! page offers what this server supports, and nothing else.

use nilometer::eval::accumulator::ACCUMULATORS;
use nilometer::eval::expression::{OPERATORS, SupportStatus};
use nilometer::eval::matcher::{
    PATH_OPERATOR_NAMES, REFUSED_OPERATOR_NAMES, TOP_LEVEL_OPERATOR_NAMES,
};
use nilometer::eval::window::WINDOW_FUNCTION_NAMES;
use nilometer::query::pipeline::{STAGES, Support};
use nilometer_bson::{Array, Document, Value, doc};

use super::command::WRITING_STAGES;

static TOP_LEVEL: [&str; TOP_LEVEL_OPERATOR_NAMES.len()] = TOP_LEVEL_OPERATOR_NAMES;
static ON_PATH: [&str; PATH_OPERATOR_NAMES.len()] = PATH_OPERATOR_NAMES;

/// Returns the names by their place: stages that the page may send, match operators at the top of a filter and on a path,
/// expressions, accumulators and window functions. All but refused ones, in the order of the alphabet.
pub(super) fn names() -> Document {
    let stages = STAGES.iter().filter(|stage| {
        let works = matches!(stage.support, Support::Yes(_));
        works && !WRITING_STAGES.contains(&stage.name) && !is_internal(stage.name)
    });
    let expressions = OPERATORS
        .iter()
        .filter(|spec| matches!(spec.status, SupportStatus::Supported));
    let accumulators = ACCUMULATORS.iter().filter(|row| row.kind.is_some());
    doc! {
        "stages": sorted(stages.map(|stage| stage.name)),
        "topLevel": sorted(accepted(&TOP_LEVEL)),
        "onPath": sorted(accepted(&ON_PATH)),
        "expressions": sorted(expressions.map(|spec| spec.name)),
        "accumulators": sorted(accumulators.map(|row| row.name)),
        "windowFunctions": sorted(WINDOW_FUNCTION_NAMES),
    }
}

/// Returns the match operators that filters accept.
fn accepted(names: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    let names = names.iter().copied();
    names.filter(|name| !REFUSED_OPERATOR_NAMES.contains(name))
}

/// True for names that only servers send.
fn is_internal(name: &str) -> bool {
    name.starts_with("$_")
}

fn sorted(names: impl IntoIterator<Item = &'static str>) -> Array {
    let mut names: Vec<&str> = names
        .into_iter()
        .filter(|name| !is_internal(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_names_are_listed_by_place_and_refused_ones_are_not() {
        let names = names();
        let has = |place: &str, name: &str| {
            let list = names.get(place);
            let list = list.as_array().expect("a list of names");
            list.iter().any(|one| one.as_str() == Some(name))
        };
        for (place, name) in [
            ("stages", "$setWindowFields"),
            ("topLevel", "$or"),
            ("onPath", "$gte"),
            ("expressions", "$dateTrunc"),
            ("accumulators", "$median"),
            ("windowFunctions", "$derivative"),
        ] {
            assert!(has(place, name), "{place}: {name}");
        }
        for (place, name) in [
            ("stages", "$out"),
            ("topLevel", "$where"),
            ("stages", "$search"),
            ("stages", "$_internalUnpackBucket"),
            ("expressions", "$function"),
            ("accumulators", "$accumulator"),
        ] {
            assert!(!has(place, name), "{place}: {name}");
        }
    }
}
