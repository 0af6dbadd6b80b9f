//! A second implementation of the builder, as plain as the format description: it measures every
//! family for every value, sums every pending value and tries every scale. The real one takes
//! shortcuts; both must write the same bytes for random columns.

use nilometer_bson::column::ColumnBuilder;
use nilometer_bson::fuzz::Numbers;

const ROOM: [u32; 4] = [60, 56, 56, 56];
const COUNT_BITS: [u32; 4] = [0, 4, 4, 5];
const UNIT: [u32; 4] = [1, 1, 4, 4];
const SHAPES: [&[(u64, usize)]; 4] = [
    &[
        (1, 60),
        (2, 30),
        (3, 20),
        (4, 15),
        (5, 12),
        (6, 10),
        (7, 8),
        (8, 7),
        (9, 6),
        (10, 5),
        (11, 4),
        (12, 3),
        (13, 2),
        (14, 1),
    ],
    &[
        (0x17, 9),
        (0x27, 8),
        (0x37, 7),
        (0x47, 6),
        (0x57, 5),
        (0x67, 4),
        (0x77, 3),
        (0x87, 2),
        (0x97, 1),
    ],
    &[
        (0x18, 7),
        (0x28, 6),
        (0x38, 5),
        (0x48, 4),
        (0x58, 3),
        (0x68, 2),
        (0x78, 1),
    ],
    &[
        (0x88, 6),
        (0x98, 5),
        (0xA8, 4),
        (0xB8, 3),
        (0xC8, 2),
        (0xD8, 1),
    ],
];

fn bit_length(value: u128) -> u32 {
    128 - value.leading_zeros()
}

#[derive(Clone)]
struct Words {
    width: u32,
    pending: Vec<(Option<u128>, [u32; 4], [u32; 4])>,
    rle: usize,
    last: Option<u128>,
    family: usize,
    open: [bool; 4],
    out: Vec<u64>,
}

impl Words {
    fn new(width: u32, last: Option<u128>) -> Self {
        Words {
            width,
            pending: Vec::new(),
            rle: 0,
            last,
            family: 0,
            open: [true; 4],
            out: Vec::new(),
        }
    }

    fn measure(&self, u: u128) -> Option<([u32; 4], [u32; 4])> {
        if u == u128::MAX >> (128 - self.width) {
            return None;
        }
        let b = if u >> 64 == 0 {
            bit_length(u + 1)
        } else {
            bit_length(u)
        };
        let z = if u == 0 { 0 } else { u.trailing_zeros() };
        let zeros = [0, z.min(15), z.min(60) / 4 * 4, z.min(124) / 4 * 4];
        let mut bits = zeros.map(|zeros| b - zeros);
        for (family, most) in [(1, 15), (2, 60), (3, 124)] {
            if z == most {
                bits[family] = bit_length((u >> most) + 1);
            }
        }
        let fits = (0..4).any(|family| bits[family] + COUNT_BITS[family] <= ROOM[family]);
        fits.then_some((bits, zeros))
    }

    fn fits(&mut self, bits: [u32; 4]) -> bool {
        for family in 0..4 {
            if !self.open[family] {
                continue;
            }
            let least = [1, 2, 4, 4][family];
            let present = self.pending.iter().filter(|held| held.0.is_some());
            let top = present
                .map(|held| held.1[family])
                .max()
                .unwrap_or(0)
                .max(least);
            let each = top.max(bits[family]) + COUNT_BITS[family];
            if each * (self.pending.len() as u32 + 1) <= ROOM[family] {
                self.family = family;
                return true;
            }
            self.open[family] = false;
        }
        false
    }

    fn word(&mut self) {
        let family = self.family;
        let shape = SHAPES[family]
            .iter()
            .find(|shape| shape.1 <= self.pending.len());
        let &(code, slots) = shape.unwrap();
        let start = if matches!(code & 15, 7 | 8) { 8 } else { 4 };
        let bits = (64 - start) / slots as u32;
        let bits = if family == 0 && start == 4 {
            60 / slots as u32
        } else {
            bits
        };
        let mut word = code;
        for (at, (value, _, zeros)) in self.pending.drain(..slots).enumerate() {
            let slot = match value {
                None => u64::MAX >> (64 - bits),
                Some(u) if family == 0 => u as u64,
                Some(u) => {
                    let zeros = zeros[family];
                    u64::from(zeros / UNIT[family]) | ((u >> zeros) as u64) << COUNT_BITS[family]
                }
            };
            word |= slot << (start + at as u32 * bits);
        }
        self.open = [true; 4];
        self.out.push(word);
    }

    fn add(&mut self, u: u128, may_repeat: bool) -> bool {
        let Some((bits, zeros)) = self.measure(u) else {
            return false;
        };
        let tail = self.pending.last().map(|held| held.0);
        let mut wrote = false;
        while !self.fits(bits) {
            self.word();
            wrote = true;
        }
        if wrote && may_repeat && self.pending.is_empty() && tail == Some(Some(u)) {
            self.start(Some(u));
        } else {
            self.pending.push((Some(u), bits, zeros));
        }
        true
    }

    fn start(&mut self, last: Option<u128>) {
        self.rle = 1;
        self.last = last;
        self.family = 0;
        self.open = [true; 4];
    }

    fn add_missing(&mut self, may_repeat: bool) {
        if let Some(tail) = self.pending.last() {
            let was = tail.0.is_none();
            if !self.fits([1, 2, 4, 4]) {
                self.word();
                self.family = 0;
            }
            if self.pending.is_empty() && was && may_repeat {
                self.start(None);
                return;
            }
        }
        self.pending.push((None, [0; 4], [0; 4]));
    }

    fn append(&mut self, value: Option<u128>) -> bool {
        if self.pending.is_empty() || self.rle > 0 {
            if self.last == value {
                self.rle += 1;
                self.family = 0;
                self.open = [true; 4];
                return true;
            }
            self.end_repeat();
        }
        match value {
            Some(u) => self.add(u, true),
            None => {
                self.add_missing(true);
                true
            }
        }
    }

    fn end_repeat(&mut self) {
        let mut steps = self.rle / 120;
        while steps > 0 {
            let now = steps.min(16);
            self.out.push(15 | (now as u64 - 1) << 4);
            steps -= now;
        }
        self.rle %= 120;
        while self.rle > 0 {
            match self.last {
                Some(u) => assert!(self.add(u, false)),
                None => self.add_missing(false),
            }
            self.rle -= 1;
        }
        self.last = Some(0);
        if self.pending.is_empty() {
            self.family = 0;
            self.open = [true; 4];
        }
    }

    fn flush(&mut self) {
        self.end_repeat();
        while !self.pending.is_empty() {
            self.word();
        }
    }

    fn held(&self) -> Vec<Option<u128>> {
        let mut held = vec![self.last; self.rle];
        held.extend(self.pending.iter().map(|value| value.0));
        held
    }

    fn repeatable(&self) -> Option<u128> {
        if self.pending.is_empty() || self.rle > 0 {
            self.last
        } else {
            Some(0)
        }
    }
}

fn zigzag(delta: i64) -> u128 {
    u128::from(((delta << 1) ^ (delta >> 63)) as u64)
}

fn unzigzag(u: u128) -> i64 {
    (u as u64 >> 1) as i64 ^ -(u as i64 & 1)
}

const MULTIPLIERS: [f64; 5] = [1.0, 10.0, 100.0, 1e4, 1e8];
const MEMORY: usize = 5;

fn enc(x: f64, s: usize) -> Option<i64> {
    if s == MEMORY {
        return Some(x.to_bits() as i64);
    }
    let y = x * MULTIPLIERS[s];
    if !(-9007199254740992.0..=9007199254740992.0).contains(&y) {
        return None;
    }
    let n = y.round() as i64;
    (dec(n, s).to_bits() == x.to_bits()).then_some(n)
}

fn dec(n: i64, s: usize) -> f64 {
    if s == MEMORY {
        f64::from_bits(n as u64)
    } else {
        n as f64 / MULTIPLIERS[s]
    }
}

fn lowest(x: f64, from: usize) -> (i64, usize) {
    (from..=MEMORY)
        .find_map(|s| enc(x, s).map(|n| (n, s)))
        .unwrap()
}

/// A stream of doubles and missing values.
struct Doubles {
    out: Vec<u8>,
    control: Option<usize>,
    words: Words,
    prev: Option<f64>,
    num: i64,
    scale: usize,
    edge: f64,
}

impl Doubles {
    fn new() -> Self {
        Doubles {
            out: Vec::new(),
            control: None,
            words: Words::new(64, Some(0)),
            prev: None,
            num: 0,
            scale: MEMORY,
            edge: 0.0,
        }
    }

    /// Moves finished words to the bytes; returns whether there were any. `num` must be the last
    /// value in `words`.
    fn take_words(&mut self) -> bool {
        let words = std::mem::take(&mut self.words.out);
        let nibble = [0x90, 0xA0, 0xB0, 0xC0, 0xD0, 0x80][self.scale];
        for word in &words {
            match self.control {
                Some(at) if self.out[at] & 0xF0 == nibble => self.out[at] += 1,
                _ => {
                    self.control = Some(self.out.len());
                    self.out.push(nibble);
                }
            }
            self.out.extend(word.to_le_bytes());
            self.control = self.control.filter(|&at| self.out[at] & 15 != 15);
        }
        if !words.is_empty() && self.prev.is_some() {
            let steps = self.words.held().into_iter().flatten().map(unzigzag);
            let held = steps.fold(0_i64, i64::wrapping_add);
            self.edge = dec(self.num.wrapping_sub(held), self.scale);
        }
        !words.is_empty()
    }

    fn literal(&mut self, x: f64) {
        self.words.flush();
        self.take_words();
        self.out.extend([1, 0]);
        self.out.extend(x.to_le_bytes());
        self.control = None;
        self.words = Words::new(64, Some(0));
        self.edge = x;
        (self.num, self.scale) = lowest(x, 0);
    }

    fn append(&mut self, x: f64) {
        let Some(prev) = self.prev else {
            self.words.flush();
            self.take_words();
            self.prev = Some(x);
            self.literal(x);
            return;
        };
        let stored = if prev.to_bits() == x.to_bits() {
            let stored = self.words.append(Some(0));
            self.take_words();
            stored
        } else {
            self.append_delta(x, prev)
        };
        self.prev = Some(x);
        if !stored {
            self.literal(x);
        }
    }

    fn append_delta(&mut self, x: f64, prev: f64) -> bool {
        let (mut n, mut s) = lowest(x, self.scale);
        if s != self.scale {
            if let Some(words) = self.rescaled(n, s) {
                (self.words, self.num, self.scale) = (words, n, s);
                return true;
            }
            self.words.flush();
            self.take_words();
            self.control = None;
            let (mut num, other) = lowest(prev, s);
            if other != s {
                (n, s) = lowest(x, other);
                num = lowest(prev, s).0;
            }
            (self.num, self.scale) = (num, s);
            self.edge = prev;
        }
        let num = self.num;
        if !self.words.append(Some(zigzag(n.wrapping_sub(num)))) {
            self.take_words();
            return false;
        }
        self.num = n;
        if !self.take_words() {
            return true;
        }
        let (old, old_scale) = (self.words.clone(), self.scale);
        let mut m = enc(self.edge, old_scale).unwrap();
        let mut q = self.edge;
        (self.num, self.scale) = lowest(self.edge, 0);
        self.words = Words::new(64, old.repeatable());
        for value in old.held() {
            match value {
                None => {
                    self.words.append(None);
                    self.take_words();
                }
                Some(u) => {
                    m = m.wrapping_add(unzigzag(u));
                    let y = dec(m, old_scale);
                    assert!(self.append_delta(y, q));
                    q = y;
                }
            }
        }
        true
    }

    fn rescaled(&self, n: i64, s: usize) -> Option<Words> {
        let mut words = Words::new(64, self.words.repeatable());
        let mut a = enc(self.edge, self.scale)?;
        let mut b = enc(self.edge, s)?;
        for value in self.words.held() {
            match value {
                None => {
                    words.append(None);
                }
                Some(u) => {
                    a = a.wrapping_add(unzigzag(u));
                    let r = enc(dec(a, self.scale), s)?;
                    if !words.append(Some(zigzag(r.wrapping_sub(b)))) || !words.out.is_empty() {
                        return None;
                    }
                    b = r;
                }
            }
        }
        let fits = words.append(Some(zigzag(n.wrapping_sub(b)))) && words.out.is_empty();
        fits.then_some(words)
    }

    fn skip(&mut self) {
        self.words.append(None);
        if self.take_words() && self.prev.is_some() && self.words.held().iter().all(Option::is_none)
        {
            (self.num, self.scale) = lowest(self.edge, 0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.words.flush();
        self.take_words();
        self.out.push(0);
        self.out
    }
}

/// Generates a double like those of a measured field: mostly close to the one before with few
/// decimals, occasionally arbitrary.
fn next_double(numbers: &mut Numbers, style: u64, last: f64) -> f64 {
    let decimals = MULTIPLIERS[(style % 5) as usize];
    let small = numbers.below(1 << (style % 13)) as f64;
    match numbers.below(40 + style % 60) {
        0 => f64::from_bits(numbers.next_u64()),
        1 => small / MULTIPLIERS[numbers.below(5) as usize],
        2 => -0.0,
        3 => last + 1.0,
        4..=9 => last,
        10 => numbers.next_u64() as f64,
        _ => small / decimals,
    }
}

#[test]
fn doubles_match_the_plain_encoder() {
    for seed in 0..3000 {
        let numbers = &mut Numbers::new(seed);
        let (mut plain, mut builder) = (Doubles::new(), ColumnBuilder::new());
        let (mut last, mut style) = (0.0, numbers.next_u64() >> 8);
        let mut run = 0;
        for at in 0..numbers.below(500) {
            if at % 60 == 59 && numbers.below(3) == 0 {
                style = numbers.next_u64() >> 8;
            }
            if run == 0 && numbers.below(80) == 0 {
                run = numbers.below(200);
            }
            let missing = numbers.below(4 + style % 100) == 0;
            if run > 0 {
                run -= 1;
            } else {
                last = next_double(numbers, style, last);
            }
            if missing {
                plain.skip();
                builder.skip();
            } else {
                plain.append(last);
                builder.append_f64(last);
            }
        }
        assert_eq!(builder.finish(), plain.finish(), "seed {seed}");
    }
}

#[test]
fn words_match_the_plain_encoder() {
    for seed in 0..3000 {
        let numbers = &mut Numbers::new(seed);
        let wide = seed % 2 == 1;
        let width = if wide { 128 } else { 64 };
        let mut plain = Words::new(width, Some(0));
        let mut values = Vec::new();
        let mut value = Some(0);
        let mut style = numbers.next_u64();
        for _ in 0..numbers.below(400) {
            if numbers.below(30) == 0 {
                style = numbers.next_u64();
            }
            if numbers.below(3 + style % 5) > 1 {
                let random = u128::from(numbers.next_u64()) << 64 | u128::from(numbers.next_u64());
                let bits = 1 + numbers.below(1 + style % 20) as u32;
                let shift = (style >> 8) as u32 % (if wide { 120 } else { 64 });
                let shift = if style & 64 == 0 { 0 } else { shift };
                let mut next = random >> (128 - bits) << shift;
                if !wide {
                    next &= u128::from(u64::MAX);
                }
                value = (numbers.below(8 + style % 90) != 0).then_some(next);
            }
            let repeats = if numbers.below(60) == 0 {
                numbers.below(2500)
            } else {
                1
            };
            for _ in 0..repeats {
                if plain.append(value) {
                    values.push(value);
                }
            }
        }
        // A rejected value has ended a repeat at that point, which the builder for all values does
        // not see.
        let mut again = Words::new(width, Some(0));
        values
            .iter()
            .for_each(|value| assert!(again.append(*value)));
        again.flush();
        let packed = nilometer_bson::column::test_words::pack(values, wide);
        assert_eq!(packed, Some(again.out), "seed {seed}");
    }
}
