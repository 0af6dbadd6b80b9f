//! A look-alike of RTABench: the orders of a shop and what happens to them, 31 questions.
//!
//! ```text
//! customers    {customer_id, name, birthday, email, city, state, country}
//! products     {product_id, name, category, price, stock}
//! orders       {order_id, customer_id, created_at}
//! order_items  {order_id, product_id, amount}
//! order_events {event_created, event_type, order_id, counter, satisfaction, processor, backup_processor?,
//!               event_payload: {terminal, status: […]}}       17 for each order, in the order of time
//! ```
//!
//! The tables, fields and proportions are those of the published set; names and values are drawn. `order_events` is a
//! time series by type of event, with an index on the order; the other layout has an ordinary collection instead.
//! Prices and satisfactions are multiples of a quarter, so that sums have the same value in any order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::document_set::{Collection, DocumentSet, Layout, Receiver};
use super::questions::{self, Question};
use super::{SetOptions, run_command_line};
use crate::data::Random;
use crate::target::Outcome;

/// The questions.
const QUESTIONS: &str = include_str!("../../sets/rtabench.json");

/// 2024-01-01, and the milliseconds of that year.
const START_MS: i64 = 1_704_067_200_000;
const YEAR_MS: i64 = 366 * 86_400_000;
/// 1945-01-01; customers are born in the 62 years after it.
const FIRST_BIRTHDAY_MS: i64 = -788_918_400_000;
const BIRTHDAYS: u64 = 62 * 365;
/// Longest time between two events of an order, and half of it on average.
const GAP_MS: u64 = 16 * 3_600_000;
/// Stops of an order between shipping and delivery.
const STOPS: usize = 7;
/// The published numbers, for ten million orders.
const CUSTOMERS: u64 = 1_102;
const PRODUCTS: u64 = 9_255;

/// Streams of random numbers.
mod stream {
    pub(super) const CUSTOMERS: u64 = 2_000;
    pub(super) const PRODUCTS: u64 = 2_001;
    pub(super) const ORDERS: u64 = 2_002;
    pub(super) const ITEMS: u64 = 2_003;
    pub(super) const EVENTS: u64 = 2_004;
}

const TERMINALS: [&str; 8] = [
    "Berlin", "Hamburg", "Munich", "London", "Paris", "Zurich", "Vienna", "Madrid",
];
const COUNTRIES: [(&str, [&str; 3]); 5] = [
    ("Germany", ["Berlin", "Bavaria", "Hesse"]),
    ("Switzerland", ["Zurich", "Bern", "Vaud"]),
    ("Austria", ["Vienna", "Tyrol", "Styria"]),
    ("France", ["Brittany", "Normandy", "Alsace"]),
    ("Spain", ["Madrid", "Galicia", "Aragon"]),
];
const CATEGORIES: [&str; 9] = [
    "Books", "Garden", "Games", "Kitchen", "Music", "Office", "Shoes", "Sports", "Tools",
];
const FIRST_NAMES: [&str; 12] = [
    "Ada", "Byron", "Cora", "Dario", "Elin", "Femke", "Goran", "Hana", "Ivo", "Jonas", "Kira",
    "Lev",
];
const LAST_NAMES: [&str; 10] = [
    "Alder", "Birch", "Cameron", "Dale", "Elm", "Frost", "Grove", "Heath", "Ivers", "Juniper",
];
const STATUSES: [&str; 4] = ["Delayed", "Priority", "Fragile", "Insured"];

/// Runs the set from the command line. False if an answer was wrong.
pub fn run(arguments: &[String], print: &mut dyn FnMut(&str)) -> Outcome<bool> {
    let title = "rtabench: a look-alike of RTABench, orders and their events as a time series";
    run_command_line(
        arguments,
        (title, ("--orders", 100_000)),
        |options| Box::new(Shop::new(options)),
        print,
    )
}

/// The set.
pub(crate) struct Shop {
    orders: u64,
    customers: u64,
    products: u64,
    seed: u64,
}

/// An event of an order that has not been written yet.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PendingEvent {
    time_ms: i64,
    order: u64,
    /// The number of the event in its order.
    number: usize,
}

impl Shop {
    pub(crate) fn new(options: &SetOptions) -> Self {
        let orders = options.size;
        Self {
            orders,
            customers: CUSTOMERS.min(orders / 4 + 1),
            products: PRODUCTS.min(orders / 2 + 1),
            seed: options.common.seed,
        }
    }

    /// Returns the time of an order. Later orders have greater numbers.
    fn created_ms(&self, order: u64) -> i64 {
        let at = u128::from(order) * YEAR_MS as u128 / (u128::from(self.orders) + 1);
        START_MS + at as i64
    }

    fn random(&self, stream: u64, number: u64) -> Random {
        Random::new(
            self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            stream,
        )
    }

    fn customer(&self, number: u64) -> Document {
        let mut random = self.random(stream::CUSTOMERS, number);
        let (country, states) = random.pick(&COUNTRIES);
        let name = person(&mut random);
        let birthday = FIRST_BIRTHDAY_MS + random.below(BIRTHDAYS) as i64 * 86_400_000;
        doc! {
            "customer_id": number as i64,
            "name": name.as_str(),
            "birthday": Value::DateTime(birthday),
            "email": format!("customer{number}@example.org"),
            "city": *random.pick(&TERMINALS),
            "state": *random.pick(states),
            "country": *country,
        }
    }

    fn product(&self, number: u64) -> Document {
        let mut random = self.random(stream::PRODUCTS, number);
        // Half of the products have less in stock than is sold on average.
        let sold = self.orders * 9 / self.products.max(1);
        doc! {
            "product_id": number as i64,
            "name": format!("Product {number:05}"),
            "category": *random.pick(&CATEGORIES),
            "price": (4 + random.below(2_000)) as f64 / 4.0,
            "stock": random.below(2 * sold + 1) as i64,
        }
    }

    fn order(&self, number: u64) -> Document {
        let mut random = self.random(stream::ORDERS, number);
        doc! {
            "order_id": number as i64,
            "customer_id": 1 + random.below(self.customers) as i64,
            "created_at": Value::DateTime(self.created_ms(number)),
        }
    }

    /// Generates the items of an order.
    fn items(&self, order: u64, receive: &mut Receiver<'_>) -> Outcome {
        let mut random = self.random(stream::ITEMS, order);
        for _ in 0..=random.below(5) {
            receive(&doc! {
                "order_id": order as i64,
                "product_id": 1 + random.below(self.products) as i64,
                "amount": 1 + random.below(5) as i64,
            })?;
        }
        Ok(())
    }

    /// Generates the events of all orders in the order of time.
    fn events(&self, receive: &mut Receiver<'_>) -> Outcome {
        let mut pending: BinaryHeap<Reverse<PendingEvent>> = BinaryHeap::new();
        for order in 1..=self.orders + 1 {
            let now = match order > self.orders {
                true => i64::MAX,
                false => self.created_ms(order),
            };
            while let Some(Reverse(next)) = pending.peek()
                && next.time_ms < now
            {
                let Some(Reverse(event)) = pending.pop() else {
                    break;
                };
                receive(&self.event(&event))?;
                pending.extend(self.next(&event).map(Reverse));
            }
            if order <= self.orders {
                pending.push(Reverse(PendingEvent {
                    time_ms: now,
                    order,
                    number: 0,
                }));
            }
        }
        Ok(())
    }

    /// Returns the event that follows another one.
    fn next(&self, event: &PendingEvent) -> Option<PendingEvent> {
        let number = event.number + 1;
        let mut random = self.random(stream::EVENTS, event.order * 64 + number as u64);
        (number < 3 + 2 * STOPS).then(|| PendingEvent {
            time_ms: event.time_ms + 1 + random.below(GAP_MS) as i64,
            order: event.order,
            number,
        })
    }

    fn event(&self, event: &PendingEvent) -> Document {
        let mut random = self.random(stream::EVENTS, event.order * 64 + 32 + event.number as u64);
        let kind = match event.number {
            0 => "Created",
            1 => "Shipped",
            last if last == 2 + 2 * STOPS => "Delivered",
            number if number % 2 == 0 => "Departed",
            _ => "Arrived",
        };
        let mut out = DocumentBuilder::with_capacity(256);
        out.append("event_created", Value::DateTime(event.time_ms));
        out.append("event_type", kind);
        out.append("order_id", event.order as i64);
        out.append("counter", random.below(1_000) as i64);
        out.append("satisfaction", random.below(41) as f64 / 4.0);
        out.append("processor", person(&mut random).as_str());
        if random.below(5) == 0 {
            out.append("backup_processor", person(&mut random).as_str());
        }
        out.begin_document("event_payload");
        out.append("terminal", *random.pick(&TERMINALS));
        let statuses = STATUSES.into_iter();
        let statuses = statuses.filter(|_| random.below(4) == 0);
        let statuses: Vec<Value> = statuses.map(Value::from).collect();
        out.append("status", Value::from(statuses));
        out.end();
        out.finish()
    }
}

fn person(random: &mut Random) -> String {
    format!("{} {}", random.pick(&FIRST_NAMES), random.pick(&LAST_NAMES))
}

impl DocumentSet for Shop {
    fn name(&self) -> &'static str {
        "rtabench"
    }

    fn layouts(&self) -> Vec<Layout> {
        let tables = || {
            vec![
                Collection::ordinary("customers").with_index(doc! { "customer_id": 1 }),
                Collection::ordinary("products").with_index(doc! { "product_id": 1 }),
                Collection::ordinary("orders")
                    .with_index(doc! { "order_id": 1 })
                    .with_index(doc! { "customer_id": 1 })
                    .with_index(doc! { "created_at": 1 }),
                Collection::ordinary("order_items").with_index(doc! { "order_id": 1 }),
            ]
        };
        let series = Collection {
            timeseries: Some(doc! { "timeField": "event_created", "metaField": "event_type" }),
            ..Collection::ordinary("order_events")
        };
        let ordinary = Collection::ordinary("order_events").with_index(doc! { "event_created": 1 });
        let layout = |name, events: Collection| {
            let mut collections = tables();
            collections.push(events.with_index(doc! { "order_id": 1 }));
            Layout { name, collections }
        };
        vec![layout("time_series", series), layout("ordinary", ordinary)]
    }

    fn generate(&self, _: &Layout, collection: &str, receive: &mut Receiver<'_>) -> Outcome {
        match collection {
            "customers" => (1..=self.customers).try_for_each(|n| receive(&self.customer(n))),
            "products" => (1..=self.products).try_for_each(|n| receive(&self.product(n))),
            "orders" => (1..=self.orders).try_for_each(|n| receive(&self.order(n))),
            "order_items" => (1..=self.orders).try_for_each(|n| self.items(n, receive)),
            "order_events" => self.events(receive),
            other => Err(format!("no collection {other}")),
        }
    }

    fn questions(&self, layout: &str) -> Outcome<Vec<Question>> {
        questions::parse(QUESTIONS, layout)
    }

    fn answer(&self, _: &str) -> Option<Vec<Document>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_series_of_orders_answers_as_ordinary_documents() {
        let folder =
            std::env::temp_dir().join(format!("nilometer-rtabench-{}", std::process::id()));
        let folder = folder.to_string_lossy().into_owned();
        let line = format!("--in-process {folder} --orders 300 --draws 1 --batch 1000");
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        let mut text = String::new();
        let right = run(&words, &mut |told| text.push_str(told));
        drop(std::fs::remove_dir_all(&folder));
        assert_eq!(right, Ok(true), "{text}");
        assert_eq!(text.matches("| right |").count(), 62, "{text}");
    }

    #[test]
    fn events_come_in_the_order_of_time_and_each_order_has_all() {
        let line = ["--orders".to_string(), "20".to_string()];
        let options = SetOptions::parse(&line, ("--orders", 1)).unwrap();
        let shop = Shop::new(&options);
        let (mut before, mut count) = (i64::MIN, 0);
        shop.events(&mut |event| {
            let nilometer_bson::ValueRef::DateTime(time) = event.get("event_created") else {
                return Err("no time".to_string());
            };
            assert!(time >= before);
            (before, count) = (time, count + 1);
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 20 * (3 + 2 * STOPS));
    }
}
