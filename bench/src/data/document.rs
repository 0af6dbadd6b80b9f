//! Documents as an `insertMany` would send them, made by patching a template.
//!
//! All documents of a host are equal but for `_id`, time and ten numbers, so each host has its bytes
//! ready (16 times, in different orders, when fields are shuffled) and a document is one copy and
//! twelve patches. The templates that follow each other in a batch lie side by side: there are too many for the processor's
//! cache, and waiting for each would be measured with the database.

use super::{Host, METRICS, Random, TAGS, stream};
use crate::options::{NumberType, Options, Shape};
use nilometer_bson::{DocumentBuilder, ObjectId, Value};

/// Field orders of a host when fields are shuffled.
const ORDERS: usize = 16;

/// A document with holes: where they are.
#[derive(Clone, Copy, Default)]
struct Template {
    /// Where the document is among those of its round.
    start: u32,
    length: u16,
    id_at: Option<u16>,
    time_at: u16,
    /// By metric.
    values_at: [u16; 10],
}

/// Templates of all hosts, one behind the other.
#[derive(Default)]
struct Round {
    bytes: Vec<u8>,
    /// By host.
    templates: Vec<Template>,
}

/// Makes documents.
pub(crate) struct Encoder {
    /// A tick takes one of them. In round `r` host `h` has the order `r + h` of its own.
    rounds: Vec<Round>,
    number: NumberType,
}

impl Encoder {
    pub(crate) fn new(hosts: &[Host], options: &Options) -> Self {
        let mut random = Random::new(options.seed, stream::ORDERS);
        let orders = if options.shuffle { ORDERS } else { 1 };
        let mut rounds: Vec<Round> = (0..orders).map(|_| Round::default()).collect();
        for (number, host) in hosts.iter().enumerate() {
            for order in 0..orders {
                let (bytes, mut template) = template(host, options, &mut random);
                let round = &mut rounds[(order + orders - number % orders) % orders];
                template.start = round.bytes.len() as u32;
                round.bytes.extend_from_slice(&bytes);
                round.templates.push(template);
            }
        }
        Self {
            rounds,
            number: options.number,
        }
    }

    /// Length of the first host's documents; others differ by the length of their tags.
    pub(crate) fn document_length(&self) -> usize {
        usize::from(self.rounds[0].templates[0].length)
    }

    /// Appends the document of a row to `out`.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        (tick, host): (usize, usize),
        time_ms: i64,
        values: &[u8],
    ) {
        let round = &self.rounds[tick * 7 % self.rounds.len()];
        let template = &round.templates[host];
        let (start, from) = (out.len(), template.start as usize);
        out.extend_from_slice(&round.bytes[from..from + usize::from(template.length)]);
        let document = &mut out[start..];
        if let Some(at) = template.id_at {
            let row = (tick * round.templates.len() + host) as u64;
            patch(document, at, &((time_ms / 1000) as u32).to_be_bytes());
            patch(document, at + 4, &row.to_be_bytes());
        }
        patch(document, template.time_at, &time_ms.to_le_bytes());
        for (at, value) in template.values_at.iter().zip(values) {
            match self.number {
                NumberType::Int64 => patch(document, *at, &i64::from(*value).to_le_bytes()),
                NumberType::Int32 => patch(document, *at, &i32::from(*value).to_le_bytes()),
                NumberType::Double => patch(document, *at, &f64::from(*value).to_le_bytes()),
            }
        }
    }
}

fn patch(document: &mut [u8], at: u16, bytes: &[u8]) {
    let at = usize::from(at);
    document[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A field that is not the `_id`.
#[derive(Clone, Copy)]
enum Field {
    Measurement,
    Time,
    Tags,
    Metric(usize),
}

fn template(host: &Host, options: &Options, random: &mut Random) -> (Vec<u8>, Template) {
    let metrics = (0..METRICS.len()).map(Field::Metric);
    let mut fields: Vec<Field> = match options.shape {
        Shape::Plain => [Field::Time, Field::Tags]
            .into_iter()
            .chain(metrics)
            .collect(),
        Shape::Fork => [Field::Measurement, Field::Time]
            .into_iter()
            .chain(metrics)
            .chain([Field::Tags])
            .collect(),
    };
    let mut tags: Vec<usize> = (0..TAGS.len()).collect();
    if options.shuffle {
        random.shuffle(&mut fields);
        random.shuffle(&mut tags);
    }
    let zero = match options.number {
        NumberType::Int64 => Value::Int64(0),
        NumberType::Int32 => Value::Int32(0),
        NumberType::Double => Value::Double(0.0),
    };
    let mut builder = DocumentBuilder::with_capacity(512);
    let (mut time_at, mut values_at) = (0, [0; 10]);
    let id_at = options.with_id.then(|| {
        builder.append("_id", ObjectId::default());
        builder.len() - 12
    });
    for field in fields {
        match field {
            Field::Measurement => {
                builder.append("measurement", "cpu");
            }
            Field::Time => {
                builder.append("time", Value::DateTime(0));
                time_at = builder.len() - 8;
            }
            Field::Tags => {
                builder.begin_document("tags");
                for tag in &tags {
                    builder.append(TAGS[*tag], &host[*tag]);
                }
                builder.end();
            }
            Field::Metric(metric) => {
                let before = builder.len() + 1 + METRICS[metric].len() + 1;
                builder.append(METRICS[metric], zero.clone());
                values_at[metric] = before;
            }
        }
    }
    let bytes = builder.finish_bytes();
    // They are short.
    let short = |at: usize| at as u16;
    let template = Template {
        start: 0,
        length: short(bytes.len()),
        id_at: id_at.map(short),
        time_at: short(time_at),
        values_at: values_at.map(short),
    };
    (bytes, template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DataSet;
    use nilometer_bson::{DocRef, ValueRef};

    fn document(options: &Options) -> (DataSet, Vec<u8>) {
        let data = DataSet::generate(options);
        let mut out = Vec::new();
        let encoder = data.encoder(options);
        encoder.write(&mut out, (2, 1), data.time_ms(2), data.row(2, 1));
        (data, out)
    }

    fn small() -> Options {
        Options {
            scale: 3,
            days: 0.01,
            ..Options::default()
        }
    }

    #[test]
    fn a_document_holds_its_row() {
        for (number, shuffle) in [
            (NumberType::Int64, false),
            (NumberType::Int32, true),
            (NumberType::Double, true),
        ] {
            let options = Options {
                number,
                shuffle,
                shape: Shape::Fork,
                ..small()
            };
            let (data, bytes) = document(&options);
            let document = DocRef::new(&bytes).expect("framed");
            assert!(
                matches!(document.get("time"), ValueRef::DateTime(ms) if ms == data.time_ms(2))
            );
            assert_eq!(document.get("measurement").as_str(), Some("cpu"));
            for (name, value) in METRICS.iter().zip(data.row(2, 1)) {
                assert_eq!(document.get(name).as_exact_i64(), Some(i64::from(*value)));
            }
            let tags = document.get("tags").as_document().expect("a document");
            for (name, value) in TAGS.iter().zip(&data.hosts[1]) {
                assert_eq!(tags.get(name).as_str(), Some(value.as_str()));
            }
        }
    }

    #[test]
    fn a_plain_document_is_as_long_as_the_one_peers_are_measured_with() {
        let (data, bytes) = document(&small());
        let tags: usize = data.hosts[1].iter().map(String::len).sum();
        // With the mean 58 characters of tags: 468 bytes.
        assert_eq!(bytes.len() - tags, 410);
    }
}
