//! Compares the stepped matcher with fancy-regex on generated patterns.

use super::*;
use crate::error::ErrorCode;
use crate::eval::EvaluationLimits;
use crate::eval::limits::{EvaluationCounters, Interrupt};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A generator of patterns (SplitMix64).
struct Generator {
    state: u64,
    groups: usize,
    /// Numbers of the groups whose end is in the pattern.
    closed: Vec<usize>,
}

impl Generator {
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    fn pick(&mut self, of: &[&str]) -> String {
        let at = self.below(of.len());
        of[at].to_owned()
    }

    fn pattern(&mut self, depth: usize) -> String {
        if depth == 0 || self.below(4) == 0 {
            return self.pick(&[
                "a",
                "b",
                "é",
                ".",
                "[ab]",
                "[^a]",
                "^",
                "$",
                r"(?-u:\b)",
                r"(?-u:\B)",
                "ab",
            ]);
        }
        let deeper = depth - 1;
        match self.below(14) {
            0..=2 => format!("{}{}", self.pattern(deeper), self.pattern(deeper)),
            3 => format!("(?:{}|{})", self.pattern(deeper), self.pattern(deeper)),
            4 | 5 => {
                self.groups += 1;
                let number = self.groups;
                let inner = self.pattern(deeper);
                self.closed.push(number);
                format!("({inner})")
            }
            6 | 7 => {
                let inner = self.pattern(deeper);
                let many = self.pick(&["*", "+", "?", "{1,2}", "{2}", "*?", "+?", "??", "{0,2}?"]);
                format!("(?:{inner}){many}")
            }
            8 => {
                let kind = self.pick(&["?=", "?!"]);
                format!("({kind}{})", self.pattern(deeper))
            }
            9 => {
                let kind = self.pick(&["?<=", "?<!"]);
                let inner = self.pick(&["a", "[ab]", "(?:ab|ba)", "^", "éa"]);
                format!("({kind}{inner})")
            }
            10 => format!("(?>{})", self.pattern(deeper)),
            11 | 12 if !self.closed.is_empty() => {
                let at = self.below(self.closed.len());
                let group = self.closed[at];
                let (then, otherwise) = (self.pattern(deeper), self.pattern(deeper));
                format!("(?({group})(?:{then})|(?:{otherwise}))")
            }
            11 => {
                let condition = self.pick(&["?=a", "?!b", "?<=a", "?<!é"]);
                let (then, otherwise) = (self.pattern(deeper), self.pattern(deeper));
                format!("(?(({condition}))(?:{then})|(?:{otherwise}))")
            }
            _ if self.groups > 0 => format!(r"(?:\{})", 1 + self.below(self.groups)),
            _ => "b".to_owned(),
        }
    }
}

/// True if a part that is repeated may match nothing. There the groups differ: as in Perl, the last repetition of a
/// program may be an empty one.
fn repeats_nothing(expression: &Expr) -> bool {
    match expression {
        Expr::Repeat { child, .. } => {
            widths(child, 0).is_none_or(|(least, _)| least == 0) || repeats_nothing(child)
        }
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().any(repeats_nothing),
        Expr::Group(inner) => repeats_nothing(inner),
        Expr::LookAround(inner, _) | Expr::AtomicGroup(inner) => repeats_nothing(inner),
        Expr::Conditional {
            condition,
            true_branch,
            false_branch,
        } => [condition, true_branch, false_branch]
            .iter()
            .any(|part| repeats_nothing(part)),
        _ => false,
    }
}

fn groups_of(found: &fancy_regex::Captures<'_, str>) -> Groups {
    let groups = found.iter();
    groups
        .map(|group| group.map(|found| found.range()))
        .collect()
}

fn compile(pattern: &str) -> Result<BacktrackProgram> {
    BacktrackProgram::compile(pattern, &FoldBudget::default())
}

fn groups_in(pattern: &str, text: &str) -> Option<Groups> {
    let program = compile(pattern).unwrap();
    program.captures(text, 0, &EvalContext::default()).unwrap()
}

#[test]
fn programs_find_the_matches_of_fancy_regex() {
    let texts = [
        "",
        "a",
        "b",
        "ab",
        "ba",
        "aab",
        "abab",
        "éab",
        "aé b",
        "ab ba\nab",
        "bbaabé",
        "aAbB éÉ",
    ];
    let (mut compared, mut matched, mut conditions) = (0, 0, 0);
    for seed in 0..4000 {
        let mut generator = Generator {
            state: seed,
            groups: 0,
            closed: Vec::new(),
        };
        let pattern = generator.pattern(4);
        let flags = ["", "(?i)", "(?m)", "(?s)"][usize::try_from(seed % 4).unwrap()];
        let pattern = format!("{flags}{pattern}");
        let Ok(known) = fancy_regex::Regex::new(&pattern) else {
            continue;
        };
        // A look-behind of unbounded length is refused.
        let Ok(program) = compile(&pattern) else {
            continue;
        };
        let tree = Expr::parse_tree(&pattern).unwrap();
        if repeats_nothing(&tree.expr) {
            continue;
        }
        for text in texts {
            let Ok(expected) = known.captures(text) else {
                continue;
            };
            let expected = expected.as_ref().map(groups_of);
            let found = program.captures(text, 0, &EvalContext::default()).unwrap();
            assert_eq!(found, expected, "/{pattern}/ in {text:?}");
            compared += 1;
            matched += usize::from(found.is_some());
            conditions += usize::from(pattern.contains("(?("));
        }
    }
    assert!(
        compared > 10_000 && matched > 2_500 && conditions > 500,
        "{compared}, {matched}, {conditions}"
    );
}

#[test]
fn usual_patterns_are_compiled() {
    for pattern in [
        r"(?<=a)b",
        r"(?<!ab|c)b",
        r"(a)\1",
        r"(?=x)x\z",
        "(?>a+)b",
        "a++b",
        r"(?i)(?=.*foo)(?=.*\d).{4,}",
        r"([0-9a-z]+) \1",
        r"(?m)^(?!#).*$",
        "(?P<n>a)(?P=n)",
        r"(?s)<(\w+)>.*?</\1>",
        r"b(?=\n?\z)",
        r"(?i)(\w+) \1",
        r"(<)?a(?(1)>)",
        r"(?<open>\()?a(?(<open>)\))",
        r"(?((?=a))ab|c)",
        r"a\Kb",
        r"\Ga",
        r"(?=\xE9)",
    ] {
        assert!(compile(pattern).is_ok(), "{pattern}");
    }
}

#[test]
fn parts_that_are_not_run_step_by_step_are_refused() {
    for pattern in [
        r"(a)\g<1>",
        r"(?~ab)(?=c)",
        r"(?(DEFINE)(a))b",
        r"(?<=a+)b",
        r"(?=a)\2",
        r"(?=[z-a])",
    ] {
        let error = compile(pattern).unwrap_err();
        assert_eq!(error.code.0, location::REGEX_PATTERN_INVALID, "{pattern}");
    }
}

#[test]
fn references_to_groups_ignore_the_case_of_any_letter() {
    for (text, matches) in [
        ("é É", true),
        ("straße STRAßE", true),
        // The letters differ in length.
        ("ſ s", true),
        ("k \u{212A}", true),
        ("σ ς", true),
        ("ǆ ǅ", true),
        ("ı i", false),
        ("straße STRASSE", false),
        ("a b", false),
    ] {
        let found = groups_in(r"(?i)\A(\S+) \1\z", text);
        assert_eq!(found.is_some(), matches, "{text}");
    }
}

#[test]
fn a_match_begins_where_the_pattern_says() {
    assert_eq!(groups_in(r"a\Kb", "xab"), Some(vec![Some(2..3)]));
    assert_eq!(groups_in(r"(?:a\K)?b", "ab"), Some(vec![Some(1..2)]));
    assert_eq!(groups_in(r"\Gb(?=c)", "abc"), None);
    let program = compile(r"\Gb(?=c)").unwrap();
    let found = program.captures("abc", 1, &EvalContext::default()).unwrap();
    assert_eq!(found, Some(vec![Some(1..2)]));
}

/// Sets of characters are counted, each as it is compiled.
#[test]
fn sets_of_characters_share_the_memory_of_a_command() {
    let budget = FoldBudget::default();
    let error = (0..10_000)
        .map(|at| {
            let sets: String = (0..20).map(|n| format!(r"[\p{{L}}{at}{n}]")).collect();
            BacktrackProgram::compile(&format!("(?={sets})"), &budget)
        })
        .find_map(Result::err)
        .expect("there is a limit");
    assert_eq!(error.code, ErrorCode::ExceededMemoryLimit);
}

/// Ends an operation at a check.
struct EndsAt(usize, AtomicUsize);

impl Interrupt for EndsAt {
    fn check_interrupt(&self) -> Result<()> {
        match self.1.fetch_add(1, Ordering::Relaxed) < self.0 {
            true => Ok(()),
            false => Err(Error::new(ErrorCode::Interrupted, "ended")),
        }
    }
}

/// Each of these takes very many steps at a single position, and none of them comes back to the caller in between.
#[test]
fn one_attempt_is_interrupted() {
    let text = "a".repeat(200_000);
    for pattern in [
        r"^(?=(a+)+b)",
        r"^(?:a|a)+(?=b)",
        r"^(?:(?=.*c)|a)*b",
        r"^(a*)*\1b(?!c)",
        r"^(?>a*)(?<=b)|^(?:.*a){9}(?=b)",
        r"(?i)^(a*)*\1b",
        r"(?i)^(a{9})\1*(?:a|\1)*b",
        r"^(a)(?:(?(1)a|b)|a)*b",
        r"^(?((?=(?:a|a)*b))a|b)",
    ] {
        let program = compile(pattern).unwrap();
        let counters = EvaluationCounters::default();
        let interrupt = EndsAt(50, AtomicUsize::new(0));
        let context = EvalContext {
            limits: Some(EvaluationLimits {
                counters: &counters,
                interrupt: &interrupt,
                clock: None,
            }),
            ..EvalContext::default()
        };
        let error = program.captures(&text, 0, &context).unwrap_err();
        // Or its stack is full before.
        let full = location::REGEX_MATCH_FAILED;
        let ended = error.code == ErrorCode::Interrupted || error.code.0 == full;
        assert!(ended, "{pattern}: {error:?}");
        assert!(interrupt.1.load(Ordering::Relaxed) <= 51, "{pattern}");
    }
}

#[test]
fn a_search_has_a_number_of_steps() {
    let text = "a".repeat(60);
    let program = compile("^(?:a|a)+(?=b)").unwrap();
    let error = program
        .captures(&text, 0, &EvalContext::default())
        .unwrap_err();
    assert_eq!(error.code.0, location::REGEX_MATCH_FAILED);
}
