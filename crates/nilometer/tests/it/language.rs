//! The language of version 8.0, name by name: each operator is supported or listed as refused in
//! COMPATIBILITY.md, and has a script that shows it.
//!
//! The lists are those of the manual, with the newer operators that this server has, repeated here so that a name missing from a table is found.
//! COMPATIBILITY.md is generated from the tables of the code, as another test checks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const STAGES: &str = "$addFields $bucket $bucketAuto $changeStream $changeStreamSplitLargeEvent $collStats \
    $count $currentOp $densify $documents $facet $fill $geoNear $graphLookup $group $indexStats $limit \
    $listCatalog $listLocalSessions $listSampledQueries $listSearchIndexes $listSessions $lookup $match $merge \
    $out $planCacheStats $project $querySettings $queryStats $redact $replaceRoot $replaceWith $sample $search \
    $searchMeta $set $setWindowFields $shardedDataDistribution $skip $sort $sortByCount $unionWith $unset \
    $unwind $vectorSearch";

const FILTERS: &str = "$all $alwaysFalse $alwaysTrue $and $bitsAllClear $bitsAllSet $bitsAnyClear $bitsAnySet \
    $comment $elemMatch $eq $exists $expr $geoIntersects $geoNear $geoWithin $gt $gte $in $jsonSchema $lt $lte \
    $maxDistance $minDistance $mod $ne $near $nearSphere $nin $nor $not $options $or $regex $sampleRate $size \
    $text $type $where $within";

const ACCUMULATORS: &str = "$accumulator $addToSet $avg $bottom $bottomN $concatArrays $count $first $firstN $last $lastN $max \
    $maxN $median $mergeObjects $min $minN $percentile $push $setUnion $stdDevPop $stdDevSamp $sum $top $topN";

const WINDOW_FUNCTIONS: &str = "$addToSet $avg $bottom $bottomN $concatArrays $count $covariancePop $covarianceSamp $denseRank \
    $derivative $documentNumber $expMovingAvg $first $firstN $integral $last $lastN $linearFill $locf $max $maxN \
    $median $min $minN $percentile $push $rank $setUnion $shift $stdDevPop $stdDevSamp $sum $top $topN";

const EXPRESSIONS: &str = "$abs $acos $acosh $add $allElementsTrue $and $anyElementTrue $arrayElemAt \
    $arrayToObject $asin $asinh $atan $atan2 $atanh $avg $binarySize $bitAnd $bitNot $bitOr $bitXor $bsonSize $ceil \
    $cmp $concat $concatArrays $cond $const $convert $cos $cosh $createObjectId $currentDate $dateAdd $dateDiff $dateFromParts $dateFromString \
    $dateSubtract $dateToParts $dateToString $dateTrunc $dayOfMonth $dayOfWeek $dayOfYear $degreesToRadians $deserializeEJSON $divide \
    $eq $exp $filter $first $firstN $floor $function $getField $gt $gte $hash $hexHash $hour $ifNull $in $indexOfArray \
    $indexOfBytes $indexOfCP $isArray $isNumber $isoDayOfWeek $isoWeek $isoWeekYear $last $lastN $let $literal $ln \
    $log $log10 $lt $lte $ltrim $map $max $maxN $median $mergeObjects $meta $millisecond $min $minN $minute $mod \
    $month $multiply $ne $not $objectToArray $or $percentile $pow $radiansToDegrees $rand $range $reduce $regexFind \
    $regexFindAll $regexMatch $replaceAll $replaceOne $reverseArray $round $rtrim $second $serializeEJSON $setDifference $setEquals \
    $setField $setIntersection $setIsSubset $setUnion $sin $sinh $size $slice $sortArray $split $sqrt $stdDevPop \
    $stdDevSamp $strLenBytes $strLenCP $strcasecmp $substr $substrBytes $substrCP $subtract $subtype $sum $switch $tan $tanh \
    $toBool $toDate $toDecimal $toDouble $toHashedIndexKey $toInt $toLong $toLower $toObjectId $toString $toUUID \
    $toUpper $trim $trunc $tsIncrement $tsSecond $type $unsetField $week $year $zip";

const VARIABLES: &str =
    "$$CLUSTER_TIME $$CURRENT $$DESCEND $$KEEP $$NOW $$PRUNE $$REMOVE $$ROOT $$USER_ROLES";

/// A list, its table in COMPATIBILITY.md, and the folders of its scripts.
const PARTS: [(&str, &str, &[&str]); 5] = [
    (STAGES, "stages", &["aggregate", "ddl", "geo", "windows"]),
    (
        FILTERS,
        "match operators",
        &["filters", "find", "geo", "index"],
    ),
    (ACCUMULATORS, "accumulators", &["accumulators"]),
    (WINDOW_FUNCTIONS, "window functions", &["windows"]),
    (EXPRESSIONS, "expressions", &["expressions"]),
];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the names in back quotes in a table of COMPATIBILITY.md.
fn table(page: &str, name: &str) -> BTreeSet<String> {
    let start = format!("<!-- table: {name} -->");
    let (_, rest) = page.split_once(&start).expect("the table");
    let (table, _) = rest.split_once("<!-- end -->").expect("its end");
    let names = table.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// Returns the quoted words that begin with a dollar sign, in the commands of a folder's scripts.
fn said_in(folder: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(folder);
    let mut said = BTreeSet::new();
    for entry in fs::read_dir(path).expect("a folder of scripts") {
        let script = fs::read_to_string(entry.expect("a file").path()).expect("a script");
        for step in script.split("\n\n") {
            let command = step.split("\n---").next().unwrap_or_default();
            let quoted = command.split('"').skip(1).step_by(2);
            // A path may follow a variable.
            let words = quoted.map(|word| word.split('.').next().unwrap_or(word));
            said.extend(words.filter(|word| word.starts_with('$')).map(String::from));
        }
    }
    said
}

#[test]
fn every_name_of_the_manual_is_listed_and_has_a_script() {
    let page = file("../../COMPATIBILITY.md");
    let mut wrong = Vec::new();
    for (list, name, folders) in PARTS {
        let listed = table(&page, name);
        let said: BTreeSet<String> = folders.iter().flat_map(|folder| said_in(folder)).collect();
        for operator in list.split_whitespace() {
            if !listed.contains(operator) {
                wrong.push(format!(
                    "COMPATIBILITY.md, {name}: nothing about {operator}"
                ));
            }
            if !said.contains(operator) {
                wrong.push(format!("{name}: no script for {operator}"));
            }
        }
        // Further names in a table are for internal use only.
        let known: BTreeSet<&str> = list.split_whitespace().collect();
        let more = listed.iter().filter(|word| word.starts_with('$'));
        let more = more.filter(|word| !known.contains(word.as_str()) && !word.starts_with("$_"));
        wrong.extend(more.map(|word| format!("{name}: {word} is not in the list of this test")));
    }
    let folders = ["expressions", "aggregate"];
    let said: BTreeSet<String> = folders.iter().flat_map(|folder| said_in(folder)).collect();
    let unsaid = VARIABLES.split_whitespace().filter(|v| !said.contains(*v));
    wrong.extend(unsaid.map(|variable| format!("no script for {variable}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
