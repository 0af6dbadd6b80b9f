//! Addresses from which a user may log in: `authenticationRestrictions`.
//!
//! A list of `{clientSource: [range, …], serverAddress: [range, …]}`; at least one of them must match in
//! all its fields. A range is an address, or an address and a number of prefix bits.

use std::net::IpAddr;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
struct AddressRange {
    text: String,
    address: IpAddr,
    bits: u32,
}

impl AddressRange {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then(|| Self {
            text: text.to_owned(),
            address,
            bits,
        })
    }

    fn holds(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= self.bits
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Restriction {
    client: Option<Vec<AddressRange>>,
    server: Option<Vec<AddressRange>>,
}

/// The restrictions of a user or role; empty if there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restrictions(Vec<Restriction>);

impl Restrictions {
    /// Parses the array; missing means no restriction. `path` names the field in errors.
    pub fn parse(value: ValueRef<'_>, path: &str) -> Result<Self> {
        let array = match value {
            ValueRef::Missing | ValueRef::Null => return Ok(Self::default()),
            ValueRef::Array(array) => array,
            other => return Err(Error::wrong_field_type(path, other, "array")),
        };
        let mut all = Vec::new();
        for value in array.iter() {
            let ValueRef::Document(document) = value else {
                return Err(Error::wrong_field_type(path, value, "object"));
            };
            let mut one = Restriction::default();
            for element in document {
                let slot = match element.name() {
                    "clientSource" => &mut one.client,
                    "serverAddress" => &mut one.server,
                    other => return Err(Error::unknown_field(format_args!("{path}.{other}"))),
                };
                let path = format!("{path}.{}", element.name());
                *slot = Some(ranges(element.value(), &path)?);
            }
            all.push(one);
        }
        Ok(Self(all))
    }

    /// Returns the array; missing if there is no restriction.
    pub fn to_value(&self) -> Value {
        let list = |ranges: &Vec<AddressRange>| {
            let texts = ranges.iter().map(|r| Value::from(r.text.as_str()));
            texts.collect::<Vec<_>>()
        };
        if self.0.is_empty() {
            return Value::Missing;
        }
        let all = self.0.iter().map(|one| {
            let mut out = DocumentBuilder::new();
            out.append("clientSource", one.client.as_ref().map(list))
                .append("serverAddress", one.server.as_ref().map(list));
            Value::from(out.finish())
        });
        Value::from(all.collect::<Vec<_>>())
    }

    /// True if a login from `client` at `server` is allowed. An embedded caller has no addresses, so
    /// restrictions refuse it.
    pub fn allow(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        let within = |ranges: &Option<Vec<AddressRange>>, address: Option<IpAddr>| match ranges {
            None => true,
            Some(ranges) => address.is_some_and(|a| ranges.iter().any(|r| r.holds(a))),
        };
        let mut all = self.0.iter();
        self.0.is_empty()
            || all.any(|one| within(&one.client, client) && within(&one.server, server))
    }
}

/// Parses a range, or an array of them.
fn ranges(value: ValueRef<'_>, path: &str) -> Result<Vec<AddressRange>> {
    let one = |value: ValueRef<'_>| match value {
        ValueRef::String(text) => AddressRange::parse(text).ok_or_else(|| {
            Error::bad_value(format!(
                "'{path}' holds '{text}', which is neither an address nor a range of addresses"
            ))
        }),
        other => Err(Error::wrong_field_type(path, other, "string")),
    };
    match value {
        ValueRef::Array(array) => array.iter().map(one).collect(),
        other => Ok(vec![one(other)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn restrictions_match_address_ranges() {
        let given = doc! {"r": array![
            doc! {"clientSource": array!["10.0.0.0/8", "::1"]},
            doc! {"serverAddress": array!["192.168.1.1"]},
        ]};
        let read = Restrictions::parse(given.get("r"), "r").unwrap();
        assert_eq!(doc! {"r": read.to_value()}.as_bytes(), given.as_bytes());
        let at = |text: &str| Some(text.parse().unwrap());
        let here = at("127.0.0.1");
        assert!(read.allow(at("10.9.8.7"), here));
        assert!(read.allow(at("::1"), here));
        assert!(read.allow(at("::ffff:10.1.1.1"), here));
        assert!(!read.allow(at("11.0.0.1"), here));
        assert!(read.allow(at("11.0.0.1"), at("192.168.1.1")));
        assert!(!read.allow(None, None));
        assert!(Restrictions::default().allow(None, None));
        for bad in [
            doc! {"r": 1},
            doc! {"r": array![1]},
            doc! {"r": array![doc! {"x": array![]}]},
            doc! {"r": array![doc! {"clientSource": array!["10.0.0.0/33"]}]},
            doc! {"r": array![doc! {"clientSource": array!["here"]}]},
        ] {
            assert!(Restrictions::parse(bad.get("r"), "r").is_err(), "{bad:?}");
        }
    }
}
