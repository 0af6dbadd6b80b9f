//! Text targets for the parsers of the server: requests of the HTTP port and of its queries, configuration files, files to import.
//!
//! Inputs are damaged valid ones. In the corpus a file is one input.

use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::fuzz::Numbers;
use nilometer_server::fuzz::{configuration, csv, http_request, query_request};

use crate::bytes::{damage, some_document};
use crate::mutation::pick;
use crate::runner::Runner;
use crate::scripts::Seeds;

/// Inputs of one seed.
const BATCH: u64 = 100;

const REQUESTS: [&str; 4] = [
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: localhost:28080\r\nCookie: nilometer=abc; other=1\r\nOrigin: http://localhost\r\n\r\n",
    "HEAD /healthz?x=%20 HTTP/1.0\r\n\r\n",
    "POST /api/command HTTP/1.1\r\nHost: [::1]:1\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n",
];

const CONFIGURATIONS: [&str; 3] = [
    include_str!("../../../packaging/nilometer.yaml"),
    "net:\n  port: 1234\n  bindIp: 127.0.0.1,::1\n  tls:\n    mode: requireTLS\n    certificateKeyFile: a.pem\n",
    "security.authorization: enabled\nsystemLog: {destination: file, path: a, logAppend: true}\nsetParameter:\n  ttlMonitorSleepSecs: 5\n",
];

const TABLES: [&str; 3] = [
    "time.date(),bed.string(),soil.moisture.double(),count\n2024-05-01T06:00:00Z,roses,31.5,12\n,,,\n",
    "a,b.c,b.d.decimal()\n\"x, \"\"y\"\"\",1e3,1.10\n9000000000,true,-7\n",
    "_id.int64(),ok.boolean(),n.int32()\r\n1,1,2\r\n2,false,3\r\n",
];

/// Parameters of `/api/query`, and the body.
const QUERY_REQUESTS: [&str; 5] = [
    "database=d&collection=c&format=arrow&fields=time:date,tags.host:string,a%3A:double&limit=5&canonical=true",
    "db=d&collection=c&filter=%7B%22a%22:%7B%22$gt%22:1%7D%7D&projection={%22_id%22:0}&sort={\"a\":1}&skip=2&hint=a_1",
    "format=csv\n{\"db\": \"d\", \"collection\": \"c\", \"pipeline\": [{\"$match\": {\"t\": {\"$gte\": {\"$date\": \"2024-05-01T00:00:00Z\"}}}}, {\"$group\": {\"_id\": \"$m\", \"n\": {\"$sum\": 1}}}]}",
    "\n{\"database\": \"d\", \"collection\": \"c\", \"fields\": [\"a\", \"b.c:int64\", \"d:binary\"], \"hint\": {\"a\": 1}, \"collation\": {\"locale\": \"de\"}, \"let\": {\"x\": 1}}",
    "database=d&pipeline=[{\"$documents\":[{\"a\":1}]}]&allowDiskUse=false&maxTimeMS=1000&let={}",
];

fn damaged(numbers: &mut Numbers, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if numbers.below(5) != 0 {
        damage(numbers, &mut bytes);
    }
    bytes
}

/// Runs requests of the HTTP port; those of the web page have a command in the body.
pub fn http_batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let head = *pick(numbers, &REQUESTS);
        let mut bytes = damaged(numbers, head);
        if numbers.below(2) == 0 {
            let command = some_document(numbers, seeds);
            bytes.extend(to_relaxed(command.as_ref()).into_bytes());
        }
        runner.one(|| shown(&bytes), || http(&bytes));
    }
}

/// Runs parameters and bodies of queries over HTTP.
pub fn query_batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let text = *pick(numbers, &QUERY_REQUESTS);
        let mut bytes = damaged(numbers, text);
        if numbers.below(4) == 0 {
            let document = some_document(numbers, seeds);
            bytes.push(b'\n');
            bytes.extend(to_relaxed(document.as_ref()).into_bytes());
        }
        runner.one(|| shown(&bytes), || query(&bytes));
    }
}

/// Runs configuration files.
pub fn config_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let text = *pick(numbers, &CONFIGURATIONS);
        let bytes = damaged(numbers, text);
        runner.one(|| shown(&bytes), || config(&bytes));
    }
}

/// Runs CSV files; lines of extended JSON are the target `extjson`.
pub fn import_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let text = *pick(numbers, &TABLES);
        let bytes = damaged(numbers, text);
        runner.one(|| shown(&bytes), || import(&bytes));
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs one request.
pub fn http(bytes: &[u8]) -> bool {
    http_request(bytes)
}

/// Runs the parameters and the body of one query.
pub fn query(bytes: &[u8]) -> bool {
    query_request(bytes)
}

/// Runs one configuration file.
pub fn config(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(configuration)
}

/// Runs one CSV file.
pub fn import(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(csv)
}

/// Replays a file of the corpus.
pub fn replay(run: fn(&[u8]) -> bool, text: &str, runner: &mut Runner) {
    runner.one(|| text.to_owned(), || run(text.as_bytes()));
}
