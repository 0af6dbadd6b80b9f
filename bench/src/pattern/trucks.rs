//! The iot set of TSBS: two measurements of each truck at each tick, clean or with defects.
//!
//! Defects, in the shares of TSBS: of groups of ten points 1 % is lost and 5 % is late; of points 10 % are lost, 30 %
//! are out of order, 10 % lack a field and 1 % lack a tag (which makes another series).

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::figures::{Figures, written_bytes};
use super::{Sender, finish};
use crate::data::{Random, START_MS};
use crate::options::Options;
use crate::target::{Connection, Outcome, Target, drain, run as call};

/// The stream of random numbers for trucks.
const STREAM: u64 = 21;

/// The stream of random numbers for dirt.
const DIRT_STREAM: u64 = 22;

const FLEETS: [&str; 4] = ["East", "West", "North", "South"];
const DRIVERS: [&str; 6] = ["Derek", "Rodney", "Albert", "Andy", "Seth", "Trish"];
const MODELS: [(&str, f64, f64, f64); 3] = [
    ("F-150", 2000.0, 200.0, 15.0),
    ("G-2000", 5000.0, 300.0, 19.0),
    ("H-2", 1500.0, 150.0, 12.0),
];
const VERSIONS: [&str; 4] = ["v1.0", "v1.5", "v2.0", "v2.3"];

/// The fields of a truck's readings: name, largest step to either side, lowest, highest, decimals.
const READINGS: [(&str, f64, f64, f64, i32); 7] = [
    ("latitude", 0.005, -90.0, 90.0, 5),
    ("longitude", 0.005, -180.0, 180.0, 5),
    ("elevation", 10.0, 0.0, 5000.0, 0),
    ("velocity", 10.0, 0.0, 100.0, 0),
    ("heading", 5.0, 0.0, 360.0, 0),
    ("grade", 5.0, 0.0, 100.0, 0),
    ("fuel_consumption", 5.0, 0.0, 50.0, 1),
];

struct Truck {
    tags: Vec<(&'static str, Value)>,
    readings: [f64; 7],
    fuel: f64,
    load: f64,
    status: f64,
}

impl Truck {
    fn draw(number: usize, random: &mut Random) -> Self {
        let (model, load, fuel, consumption) = *random.pick(&MODELS);
        let tags = vec![
            ("name", Value::from(format!("truck_{number}"))),
            ("fleet", Value::from(*random.pick(&FLEETS))),
            ("driver", Value::from(*random.pick(&DRIVERS))),
            ("model", Value::from(model)),
            ("device_version", Value::from(*random.pick(&VERSIONS))),
            ("load_capacity", Value::Double(load)),
            ("fuel_capacity", Value::Double(fuel)),
            ("nominal_fuel_consumption", Value::Double(consumption)),
        ];
        let mut readings = [0.0; 7];
        for (value, (_, _, low, high, _)) in readings.iter_mut().zip(READINGS) {
            *value = low + random.unit() * (high - low);
        }
        readings[3] = 0.0;
        readings[6] = 25.0;
        Self {
            tags,
            readings,
            fuel: 1.0,
            load: random.unit() * 5000.0,
            status: 0.0,
        }
    }

    fn step(&mut self, random: &mut Random) {
        for (value, (_, step, low, high, _)) in self.readings.iter_mut().zip(READINGS) {
            *value = (*value + (random.unit() * 2.0 - 1.0) * step).clamp(low, high);
        }
        self.fuel -= random.unit() * 0.001;
        if self.fuel <= 0.0 {
            self.fuel = 1.0;
        }
        if random.below(20) == 0 {
            self.load = random.unit() * 5000.0;
        }
        self.status = (self.status + random.normal()).clamp(0.0, 5.0);
    }

    fn fields(&self, diagnostics: bool) -> Vec<(&'static str, Value)> {
        let round = |value: f64, decimals: i32| {
            let scale = 10f64.powi(decimals);
            Value::Double((value * scale).trunc() / scale)
        };
        if diagnostics {
            return vec![
                ("fuel_state", round(self.fuel, 1)),
                ("current_load", round(self.load, 0)),
                ("status", Value::Int64(self.status as i64)),
            ];
        }
        let values = self.readings.iter().zip(READINGS);
        values
            .map(|(value, (name, .., decimals))| (name, round(*value, decimals)))
            .collect()
    }
}

/// The defects of points.
struct Defects {
    random: Random,
    /// Points held back, with the tick at which they are sent.
    held: Vec<(usize, Document)>,
    /// The fate of the current group of points.
    group: PointFate,
    in_group: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum PointFate {
    Sent,
    Late,
    Lost,
}

impl Defects {
    /// Points of a group that share a fate.
    const GROUP: usize = 10;

    fn new(seed: u64) -> Self {
        let random = Random::new(seed, DIRT_STREAM);
        Self {
            random,
            held: Vec::new(),
            group: PointFate::Sent,
            in_group: 0,
        }
    }

    /// Draws the fate of the next point, and whether it lacks a field or a tag.
    fn draw(&mut self) -> (PointFate, bool, bool) {
        if self.in_group == 0 {
            self.in_group = Self::GROUP;
            self.group = match self.random.below(100) {
                0 => PointFate::Lost,
                1..=5 => PointFate::Late,
                _ => PointFate::Sent,
            };
        }
        self.in_group -= 1;
        let fate = match (self.group, self.random.below(100)) {
            (PointFate::Lost, _) | (_, 0..10) => PointFate::Lost,
            (PointFate::Late, _) | (_, 10..40) => PointFate::Late,
            _ => PointFate::Sent,
        };
        (
            fate,
            self.random.below(10) == 0,
            self.random.below(100) == 0,
        )
    }
}

fn point(
    time_ms: i64,
    truck: &Truck,
    diagnostics: bool,
    lacks: Option<(usize, bool, bool)>,
) -> Document {
    let mut out = DocumentBuilder::with_capacity(512);
    out.append("time", Value::DateTime(time_ms));
    let (which, no_field, no_tag) = lacks.unwrap_or((0, false, false));
    out.begin_document("tags");
    for (at, (name, value)) in truck.tags.iter().enumerate() {
        if !no_tag || at != which % truck.tags.len() {
            out.append(name, value.clone());
        }
    }
    out.end();
    let fields = truck.fields(diagnostics);
    let count = fields.len();
    for (at, (name, value)) in fields.into_iter().enumerate() {
        if !no_field || at != which % count {
            out.append(name, value);
        }
    }
    out.finish()
}

/// Loads `--scale` trucks for `--days` into two collections, `readings` and `diagnostics`.
pub(crate) fn run(options: &Options, dirty: bool) -> Outcome<Figures> {
    let mut target = Target::open(options)?;
    let before = written_bytes();
    let mut figures = Figures::default();
    let mut sent_rows = 0;
    for diagnostics in [false, true] {
        let collection = if diagnostics {
            "diagnostics"
        } else {
            "readings"
        };
        prepare(target.first(), options, collection)?;
        let command = doc! { "insert": collection, "ordered": true, "$db": &options.database };
        let mut sent = Sender::new(target.first(), command, options.batch);
        load(&mut sent, options, diagnostics, dirty)?;
        figures.add_round(&sent);
        let rows = sent.rows;
        sent_rows += rows;
        let found = count(target.first(), options, collection)?;
        if found != rows as i64 {
            return Err(format!(
                "{rows} {collection} were acknowledged, {found} are there"
            ));
        }
    }
    figures
        .notes
        .push(("acknowledged and found again", sent_rows.to_string()));
    let options = Options {
        collection: "readings".to_string(),
        ..options.clone()
    };
    finish(&mut target, &options, before, &mut figures)?;
    Ok(figures)
}

fn prepare(connection: &mut dyn Connection, options: &Options, collection: &str) -> Outcome {
    let database = &options.database;
    call(
        connection,
        &doc! { "drop": collection, "$db": database },
        None,
    )?;
    let timeseries = doc! { "timeField": "time", "metaField": "tags" };
    let create = doc! { "create": collection, "timeseries": timeseries, "$db": database };
    call(connection, &create, None)?;
    Ok(())
}

fn load(sent: &mut Sender<'_>, options: &Options, diagnostics: bool, dirty: bool) -> Outcome {
    let mut random = Random::new(options.seed, STREAM);
    let mut trucks: Vec<Truck> = (0..options.scale)
        .map(|n| Truck::draw(n, &mut random))
        .collect();
    let mut dirt = Defects::new(options.seed);
    for tick in 0..options.ticks() {
        let time_ms = START_MS + tick as i64 * options.interval_s * 1000;
        for truck in &mut trucks {
            truck.step(&mut random);
            if !dirty {
                push(sent, &point(time_ms, truck, diagnostics, None))?;
                continue;
            }
            let (fate, no_field, no_tag) = dirt.draw();
            let which = dirt.random.below(64) as usize;
            let document = point(time_ms, truck, diagnostics, Some((which, no_field, no_tag)));
            match fate {
                PointFate::Lost => {}
                PointFate::Sent => push(sent, &document)?,
                PointFate::Late => {
                    let delay = 1 + dirt.random.below(60) as usize;
                    dirt.held.push((tick + delay, document));
                }
            }
        }
        let held = std::mem::take(&mut dirt.held);
        let (due, later): (Vec<_>, Vec<_>) = held.into_iter().partition(|(at, _)| *at <= tick);
        dirt.held = later;
        due.iter()
            .try_for_each(|(_, document)| push(sent, document))?;
    }
    for (_, document) in std::mem::take(&mut dirt.held) {
        push(sent, &document)?;
    }
    sent.flush()
}

fn push(sent: &mut Sender<'_>, document: &Document) -> Outcome {
    sent.documents.extend_from_slice(document.as_bytes());
    sent.added()
}

/// Returns the number of measurements, by counting.
fn count(connection: &mut dyn Connection, options: &Options, collection: &str) -> Outcome<i64> {
    let pipeline = nilometer_bson::array![doc! { "$count": "n" }];
    let aggregate = doc! {
        "aggregate": collection,
        "pipeline": pipeline,
        "cursor": doc! {},
        "$db": &options.database,
    };
    let batches = drain(connection, &aggregate, options)?;
    let found = batches.iter().flat_map(|b| b.documents()).next();
    Ok(found.and_then(|f| f.get("n").as_exact_i64()).unwrap_or(0))
}
