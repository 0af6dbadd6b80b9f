// What a Java program does with a time-series database, through the official synchronous driver.
//
// Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// the same for every client and are listed in xtask/src/conformance/checks.rs.

import com.mongodb.ConnectionString;
import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoCompressor;
import com.mongodb.MongoCredential;
import com.mongodb.MongoException;
import com.mongodb.MongoSecurityException;
import com.mongodb.MongoWriteException;
import com.mongodb.WriteConcern;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.CreateCollectionOptions;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.TimeSeriesGranularity;
import com.mongodb.client.model.TimeSeriesOptions;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBoolean;
import org.bson.BsonDateTime;
import org.bson.BsonDecimal128;
import org.bson.BsonDocument;
import org.bson.BsonDouble;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonJavaScript;
import org.bson.BsonMaxKey;
import org.bson.BsonMinKey;
import org.bson.BsonNull;
import org.bson.BsonObjectId;
import org.bson.BsonRegularExpression;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.types.Decimal128;
import org.bson.types.ObjectId;

public final class Check {
  static final long START = Instant.parse("2024-01-01T00:00:00Z").toEpochMilli();
  static final long MINUTE = 60_000;
  static final int SENSORS = 4;
  static final int SINGLE = 10;
  static final int TOTAL = 1010;
  static final String URI = System.getenv("NILOMETER_URI");

  static MongoClient client;
  static MongoDatabase db;
  static MongoCollection<Document> readings;

  interface Action {
    void run() throws Exception;
  }

  static void equal(Object got, Object expected) {
    if (!Objects.equals(got, expected)) {
      throw new AssertionError("got " + got + ", expected " + expected);
    }
  }

  static void check(boolean holds, String message) {
    if (!holds) {
      throw new AssertionError(message);
    }
  }

  /** Returns the code of the error that the action must throw. */
  static int codeOf(Action action) throws Exception {
    try {
      action.run();
    } catch (MongoWriteException e) {
      return e.getError().getCode();
    } catch (MongoException e) {
      return e.getCode();
    }
    throw new AssertionError("no error");
  }

  static Date at(int i) {
    return new Date(START + i * MINUTE);
  }

  static Document measurement(int i) {
    return new Document("time", at(i)).append("sensor", "s" + i % SENSORS).append("value", (double) i).append("n", i);
  }

  static Document doc(String name, Object value) {
    return new Document(name, value);
  }

  static CreateCollectionOptions timeSeries(TimeSeriesGranularity granularity) {
    return new CreateCollectionOptions()
        .timeSeriesOptions(new TimeSeriesOptions("time").metaField("sensor").granularity(granularity));
  }

  static List<Integer> upTo(int n) {
    List<Integer> out = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      out.add(i);
    }
    return out;
  }

  static List<Integer> numbers(Iterable<Document> documents) {
    List<Integer> out = new ArrayList<>();
    documents.forEach(d -> out.add(d.getInteger("n")));
    return out;
  }

  static void connectAndPing() {
    MongoDatabase admin = client.getDatabase("admin");
    equal(((Number) admin.runCommand(doc("ping", 1)).get("ok")).intValue(), 1);
    equal(admin.runCommand(doc("hello", 1)).getInteger("maxBsonObjectSize"), 16 * 1024 * 1024);
    equal(admin.runCommand(doc("buildInfo", 1)).getList("versionArray", Integer.class).get(0), 8);
  }

  static void createTimeSeries() {
    db.drop();
    db.createCollection("readings", timeSeries(TimeSeriesGranularity.SECONDS));
    Document found = db.listCollections().filter(doc("name", "readings")).first();
    equal(found.getString("type"), "timeseries");
    equal(found.getEmbedded(List.of("options", "timeseries", "metaField"), String.class), "sensor");
  }

  static void insertOneByOne() {
    for (int i = 0; i < SINGLE; i++) {
      check(readings.insertOne(measurement(i)).wasAcknowledged(), "not acknowledged");
    }
    equal(readings.countDocuments(), (long) SINGLE);
  }

  static void insertInBulk() {
    List<Document> batch = new ArrayList<>();
    for (int i = SINGLE; i < TOTAL; i++) {
      batch.add(measurement(i));
    }
    equal(readings.insertMany(batch).getInsertedIds().size(), TOTAL - SINGLE);
    equal(readings.countDocuments(), (long) TOTAL);
  }

  static void findFilterSortLimitProjection() {
    Document filter = doc("sensor", "s1").append("value", doc("$gte", 100).append("$lt", 900)).append("time", doc("$gt", at(0)));
    List<Document> found = readings.find(filter).projection(doc("_id", 0).append("n", 1).append("time", 1))
        .sort(doc("time", -1)).skip(1).limit(3).into(new ArrayList<>());
    List<Document> expected = new ArrayList<>();
    for (int n : new int[] {893, 889, 885}) {
      expected.add(doc("time", at(n)).append("n", n));
    }
    equal(found, expected);
    equal(readings.find(doc("n", doc("$in", List.of(7, 8)))).sort(doc("n", 1)).first().getInteger("n"), 7);
  }

  static void aggregateByHour() {
    Document hour = doc("$dateTrunc", doc("date", "$time").append("unit", "hour"));
    List<Document> got = readings.aggregate(List.of(
        doc("$match", doc("time", doc("$lt", at(12 * 60)))),
        doc("$group", doc("_id", doc("hour", hour).append("sensor", "$sensor"))
            .append("mean", doc("$avg", "$value")).append("count", doc("$sum", 1))),
        doc("$sort", doc("_id.hour", 1).append("_id.sensor", 1)))).into(new ArrayList<>());
    List<Document> expected = new ArrayList<>();
    for (int h = 0; h < 12; h++) {
      for (int s = 0; s < SENSORS; s++) {
        int sum = 0;
        int count = 0;
        for (int i = h * 60; i < h * 60 + 60; i++) {
          if (i % SENSORS == s) {
            sum += i;
            count++;
          }
        }
        expected.add(doc("_id", doc("hour", at(h * 60)).append("sensor", "s" + s))
            .append("mean", (double) sum / count).append("count", count));
      }
    }
    equal(got, expected);
  }

  static void cursorOverBatches() {
    equal(numbers(readings.find().batchSize(64).sort(doc("time", 1))), upTo(TOTAL));
    List<Integer> sorted = numbers(readings.aggregate(
        List.of(doc("$project", doc("n", 1)), doc("$sort", doc("n", -1)))).batchSize(64));
    Collections.reverse(sorted);
    equal(sorted, upTo(TOTAL));
  }

  static void cursorClosedEarly() throws Exception {
    long id;
    try (var cursor = readings.find().batchSize(10).cursor()) {
      cursor.next();
      check(cursor.getServerCursor() != null, "the server kept no cursor");
      id = cursor.getServerCursor().getId();
    }
    Document again = doc("getMore", id).append("collection", "readings");
    equal(codeOf(() -> db.runCommand(again)), 43);
  }

  static void countAndDistinct() {
    equal(readings.countDocuments(doc("sensor", "s2")), (long) (TOTAL - 2 + SENSORS - 1) / SENSORS);
    equal(readings.estimatedDocumentCount(), (long) TOTAL);
    Set<String> names = readings.distinct("sensor", String.class).into(new TreeSet<>());
    equal(names, Set.of("s0", "s1", "s2", "s3"));
  }

  static void listCollectionsAndDatabases() {
    check(client.listDatabaseNames().into(new ArrayList<>()).contains(db.getName()), "database not listed");
    List<String> names = db.listCollectionNames().into(new ArrayList<>());
    names.removeIf(n -> n.startsWith("system."));
    equal(names, List.of("readings"));
  }

  static void readBuckets() {
    List<Document> buckets = db.getCollection("system.buckets.readings").find().into(new ArrayList<>());
    check(buckets.size() >= SENSORS, buckets.size() + " buckets");
    Set<String> series = new TreeSet<>();
    int count = 0;
    for (Document b : buckets) {
      Document control = b.get("control", Document.class);
      check(Set.of(2, 3).contains(control.getInteger("version")), "version");
      count += control.getInteger("count");
      series.add(b.getString("meta"));
    }
    equal(series.size(), SENSORS);
    equal(count, TOTAL);
  }

  static void everyTypeComesBack() {
    db.createCollection("types", new CreateCollectionOptions().timeSeriesOptions(new TimeSeriesOptions("t")));
    MongoCollection<BsonDocument> types = db.getCollection("types", BsonDocument.class);
    List<BsonValue> values = List.of(
        new BsonDouble(1.5), new BsonDouble(Double.POSITIVE_INFINITY), new BsonString("text"),
        new BsonDocument("a", new BsonDocument("b", new BsonArray(List.of(new BsonInt32(1), new BsonString("x"))))),
        new BsonArray(List.of(new BsonInt32(1), new BsonArray(List.of(new BsonInt32(2))), new BsonDocument("c", BsonNull.VALUE))),
        new BsonBinary(new byte[] {0, 1}), new BsonObjectId(new ObjectId("0123456789abcdef01234567")),
        BsonBoolean.TRUE, BsonNull.VALUE, new BsonRegularExpression("^a", "i"), new BsonInt32(Integer.MAX_VALUE),
        new BsonInt64(1L << 40), new BsonTimestamp(5, 6), new BsonDecimal128(Decimal128.parse("1.10")),
        new BsonMinKey(), new BsonMaxKey(), new BsonJavaScript("f()"),
        new BsonDateTime(Instant.parse("1901-01-01T00:00:00Z").toEpochMilli()));
    long early = Instant.parse("1871-01-01T00:00:00Z").toEpochMilli();
    List<BsonDocument> documents = new ArrayList<>();
    for (int i = 0; i < values.size(); i++) {
      documents.add(new BsonDocument("_id", new BsonInt32(i))
          .append("t", new BsonDateTime(early + i * MINUTE)).append("v", values.get(i)));
    }
    types.insertMany(documents);
    List<BsonDocument> got = types.find().sort(doc("_id", 1)).into(new ArrayList<>());
    equal(got.stream().map(d -> d.get("v")).toList(), values);
    equal(got.stream().map(d -> d.get("t")).toList(), documents.stream().map(d -> d.get("t")).toList());
    types.drop();
  }

  static void ordinaryCollection() throws Exception {
    MongoCollection<Document> plain = db.getCollection("plain");
    List<Document> documents = new ArrayList<>();
    for (int i = 0; i < 6; i++) {
      documents.add(doc("_id", i).append("tags", Arrays.asList("a", "b").subList(0, i % 3)));
    }
    plain.insertMany(documents);
    List<Integer> ids = new ArrayList<>();
    plain.find(doc("tags", "b")).sort(doc("_id", 1)).forEach(d -> ids.add(d.getInteger("_id")));
    equal(ids, List.of(2, 5));
    equal(codeOf(() -> plain.insertOne(doc("_id", 3))), 11000);
    plain.drop();
  }

  static void unacknowledgedWrite() throws Exception {
    readings.withWriteConcern(WriteConcern.UNACKNOWLEDGED).insertOne(measurement(TOTAL));
    // Another connection of the pool may be faster than the write.
    for (int tries = 0; tries < 100; tries++) {
      if (readings.countDocuments() == TOTAL + 1) {
        return;
      }
      Thread.sleep(20);
    }
    throw new AssertionError("the measurement never arrived");
  }

  static void compressedMessages() {
    MongoClientSettings settings = MongoClientSettings.builder().applyConnectionString(new ConnectionString(URI))
        .compressorList(List.of(MongoCompressor.createZlibCompressor())).build();
    try (MongoClient other = MongoClients.create(settings)) {
      MongoCollection<Document> collection = other.getDatabase(db.getName()).getCollection("readings");
      equal(collection.find(doc("n", doc("$lt", TOTAL))).into(new ArrayList<>()).size(), TOTAL);
    }
  }

  static void orderedAndUnorderedErrors() {
    db.createCollection("mixed", timeSeries(TimeSeriesGranularity.SECONDS));
    MongoCollection<Document> mixed = db.getCollection("mixed");
    for (boolean ordered : new boolean[] {true, false}) {
      try {
        mixed.insertMany(List.of(measurement(0), doc("sensor", "x"), measurement(1)), new InsertManyOptions().ordered(ordered));
        throw new AssertionError("no error");
      } catch (MongoBulkWriteException e) {
        equal(e.getWriteResult().getInsertedCount(), ordered ? 1 : 2);
        equal(e.getWriteErrors().size(), 1);
        equal(e.getWriteErrors().get(0).getIndex(), 1);
      }
    }
    equal(mixed.countDocuments(), 3L);
    mixed.drop();
  }

  static void errorCreateWithOtherOptions() throws Exception {
    equal(codeOf(() -> db.createCollection("readings", timeSeries(TimeSeriesGranularity.HOURS))), 48);
  }

  static void errorNoDate() throws Exception {
    equal(codeOf(() -> readings.insertOne(doc("sensor", "s0").append("value", 1))), 2);
    equal(codeOf(() -> readings.insertOne(doc("time", "today").append("sensor", "s0"))), 2);
  }

  static void errorUnknownCommand() throws Exception {
    equal(codeOf(() -> db.runCommand(doc("noSuchCommand", 1))), 59);
  }

  static void errorUnknownStage() throws Exception {
    equal(codeOf(() -> readings.aggregate(List.of(doc("$noSuchStage", new Document()))).first()), 40324);
  }

  static void drop() {
    readings.drop();
    List<String> names = db.listCollectionNames().into(new ArrayList<>());
    check(!names.contains("readings") && !names.contains("system.buckets.readings"), "still there");
    db.drop();
    check(!client.listDatabaseNames().into(new ArrayList<>()).contains(db.getName()), "database still there");
  }

  static final String LOGINS = "logins_java";

  /** Calls a function with the database of a client that logs in like this, and closes the client. */
  static void loggedIn(String mechanism, String password, LoggedIn action) throws Exception {
    char[] secret = password.toCharArray();
    MongoCredential credential = switch (mechanism) {
      case "SCRAM-SHA-1" -> MongoCredential.createScramSha1Credential("gauge", LOGINS, secret);
      case "SCRAM-SHA-256" -> MongoCredential.createScramSha256Credential("gauge", LOGINS, secret);
      default -> MongoCredential.createCredential("gauge", LOGINS, secret);
    };
    MongoClientSettings settings = MongoClientSettings.builder().applyConnectionString(new ConnectionString(URI))
        .credential(credential)
        .applyToClusterSettings(b -> b.serverSelectionTimeout(10, TimeUnit.SECONDS)).build();
    try (MongoClient own = MongoClients.create(settings)) {
      action.run(own.getDatabase(LOGINS));
    }
  }

  interface LoggedIn {
    void run(MongoDatabase own) throws Exception;
  }

  static void logInByScram() throws Exception {
    client.getDatabase(LOGINS).runCommand(doc("createUser", "gauge").append("pwd", "p@ss: weir, Ω")
        .append("roles", List.of("readWrite")));
    for (String mechanism : List.of("SCRAM-SHA-1", "SCRAM-SHA-256", "")) {
      loggedIn(mechanism, "p@ss: weir, Ω", own -> {
        Document status = own.runCommand(doc("connectionStatus", 1)).get("authInfo", Document.class);
        equal(status.getList("authenticatedUsers", Document.class), List.of(doc("user", "gauge").append("db", LOGINS)));
        own.getCollection("levels").insertOne(doc("level", 7));
      });
    }
  }

  static void wrongPassword() throws Exception {
    loggedIn("", "weir", own -> {
      try {
        own.getCollection("levels").find().first();
        throw new AssertionError("no error");
      } catch (MongoSecurityException e) {
        equal(((MongoCommandException) e.getCause()).getErrorCode(), 18);
      }
    });
    MongoDatabase logins = client.getDatabase(LOGINS);
    logins.runCommand(doc("dropUser", "gauge"));
    logins.drop();
  }

  static void attempt(String name, Action action) {
    try {
      action.run();
      System.out.println("ok " + name);
    } catch (Throwable e) {
      String text = String.valueOf(e).replace('\n', ' ');
      System.out.println("not ok " + name + ": " + text);
    }
  }

  public static void main(String[] arguments) {
    client = MongoClients.create(MongoClientSettings.builder().applyConnectionString(new ConnectionString(URI))
        .applyToClusterSettings(b -> b.serverSelectionTimeout(10, TimeUnit.SECONDS)).build());
    db = client.getDatabase("conformance_java");
    readings = db.getCollection("readings");
    attempt("connect_and_ping", Check::connectAndPing);
    attempt("create_time_series", Check::createTimeSeries);
    attempt("insert_one_by_one", Check::insertOneByOne);
    attempt("insert_in_bulk", Check::insertInBulk);
    attempt("find_filter_sort_limit_projection", Check::findFilterSortLimitProjection);
    attempt("aggregate_by_hour", Check::aggregateByHour);
    attempt("cursor_over_batches", Check::cursorOverBatches);
    attempt("cursor_closed_early", Check::cursorClosedEarly);
    attempt("count_and_distinct", Check::countAndDistinct);
    attempt("list_collections_and_databases", Check::listCollectionsAndDatabases);
    attempt("read_buckets", Check::readBuckets);
    attempt("every_type_comes_back", Check::everyTypeComesBack);
    attempt("ordinary_collection", Check::ordinaryCollection);
    attempt("unacknowledged_write", Check::unacknowledgedWrite);
    attempt("compressed_messages", Check::compressedMessages);
    attempt("ordered_and_unordered_errors", Check::orderedAndUnorderedErrors);
    attempt("error_create_with_other_options", Check::errorCreateWithOtherOptions);
    attempt("error_no_date", Check::errorNoDate);
    attempt("error_unknown_command", Check::errorUnknownCommand);
    attempt("error_unknown_stage", Check::errorUnknownStage);
    attempt("drop", Check::drop);
    attempt("log_in_by_scram", Check::logInByScram);
    attempt("wrong_password", Check::wrongPassword);
    client.close();
  }
}
