// Debezium's connector for MongoDB, in its embedded engine: it copies an ordinary collection and a time series, follows
// their changes, and resumes after a stop where it was.
//
// Reads NILOMETER_URI, the address of a replica set; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names
// are listed in xtask/src/conformance/checks.rs.

import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.CreateCollectionOptions;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.TimeSeriesOptions;
import com.mongodb.client.model.Updates;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.bson.Document;

public class Check {
    static final String DATABASE = "conformance_debezium";
    static final Instant START = Instant.parse("2024-01-01T00:00:00Z");
    static final long EVENT_SECONDS_MAX = 60;

    interface Action {
        void run() throws Exception;
    }

    // A running connector, and the changes that it reports.
    static class Connector implements AutoCloseable {
        final BlockingQueue<Document> changes = new LinkedBlockingQueue<>();
        final CountDownLatch ended = new CountDownLatch(1);
        final DebeziumEngine<ChangeEvent<String, String>> engine;
        volatile String failure;

        Connector(String uri, Path offsets) {
            Properties properties = new Properties();
            properties.setProperty("name", "check");
            properties.setProperty("connector.class", "io.debezium.connector.mongodb.MongoDbConnector");
            properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
            properties.setProperty("offset.storage.file.filename", offsets.toString());
            properties.setProperty("offset.flush.interval.ms", "0");
            properties.setProperty("converter.schemas.enable", "false");
            properties.setProperty("tombstones.on.delete", "false");
            properties.setProperty("poll.interval.ms", "20");
            properties.setProperty("topic.prefix", "check");
            properties.setProperty("mongodb.connection.string", uri);
            properties.setProperty("collection.include.list", DATABASE + ".accounts," + DATABASE + ".air");
            properties.setProperty("capture.mode", "change_streams_update_full");
            engine = DebeziumEngine.create(Json.class)
                    .using(properties)
                    .notifying(this::take)
                    .using((success, message, error) -> {
                        failure = success ? null : message + " " + error;
                        ended.countDown();
                    })
                    .build();
            new Thread(engine).start();
        }

        void take(ChangeEvent<String, String> event) {
            if (event.value() != null) {
                changes.add(Document.parse(event.value()));
            }
        }

        // Returns the next change as "operation collection document".
        String next() throws Exception {
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(EVENT_SECONDS_MAX);
            while (System.nanoTime() < until) {
                Document change = changes.poll(100, TimeUnit.MILLISECONDS);
                if (change != null) {
                    Document source = change.get("source", Document.class);
                    String after = change.getString("after");
                    String shown = after == null ? "" : " " + shown(Document.parse(after));
                    return change.getString("op") + " " + source.getString("collection") + shown;
                }
                if (failure != null) {
                    throw new IllegalStateException(failure);
                }
            }
            throw new IllegalStateException("no change was reported");
        }

        List<String> next(int count) throws Exception {
            List<String> found = new ArrayList<>();
            for (int at = 0; at < count; at++) {
                found.add(next());
            }
            return found;
        }

        @Override
        public void close() throws Exception {
            engine.close();
            ended.await(EVENT_SECONDS_MAX, TimeUnit.SECONDS);
        }
    }

    static String uri;
    static MongoClient client;
    static Path offsets;
    static Connector connector;

    static MongoCollection<Document> accounts() {
        return client.getDatabase(DATABASE).getCollection("accounts");
    }

    static MongoCollection<Document> air() {
        return client.getDatabase(DATABASE).getCollection("air");
    }

    static String shown(Document document) {
        return document.containsKey("room")
                ? document.get("_id") + " " + document.get("room") + " " + document.get("co2")
                : document.get("_id") + " " + document.get("balance");
    }

    static Document account(int id, int balance) {
        return new Document("_id", id).append("balance", balance);
    }

    static Document measurement(int id, String room, int co2) {
        Date time = Date.from(START.plusSeconds(60L * id));
        return new Document("t", time).append("room", room).append("_id", id).append("co2", co2);
    }

    static void equal(Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            throw new IllegalStateException("got " + got + ", expected " + expected);
        }
    }

    static void copy() throws Exception {
        client.getDatabase(DATABASE).drop();
        TimeSeriesOptions series = new TimeSeriesOptions("t").metaField("room");
        client.getDatabase(DATABASE).createCollection("air", new CreateCollectionOptions().timeSeriesOptions(series));
        accounts().insertMany(List.of(account(1, 10), account(2, 20)));
        air().insertMany(List.of(measurement(1, "hall", 400), measurement(2, "attic", 500)));
        connector = new Connector(uri, offsets);
        List<String> copied = connector.next(4);
        copied.sort(null);
        equal(copied, List.of("r accounts 1 10", "r accounts 2 20", "r air 1 hall 400", "r air 2 attic 500"));
    }

    static void followDocuments() throws Exception {
        accounts().insertOne(account(3, 30));
        equal(connector.next(), "c accounts 3 30");
        accounts().updateOne(Filters.eq(3), Updates.inc("balance", 1));
        equal(connector.next(), "u accounts 3 31");
        accounts().replaceOne(Filters.eq(3), account(3, 40));
        equal(connector.next(), "u accounts 3 40");
        accounts().deleteOne(Filters.eq(3));
        equal(connector.next(), "d accounts");
    }

    static void followMeasurements() throws Exception {
        air().insertMany(List.of(measurement(3, "hall", 410), measurement(4, "hall", 420)));
        equal(connector.next(2), List.of("c air 3 hall 410", "c air 4 hall 420"));
        air().updateOne(Filters.eq(4), Updates.set("co2", 999));
        equal(connector.next(), "u air 4 hall 999");
        air().deleteMany(Filters.eq("room", "attic"));
        equal(connector.next(), "d air");
    }

    static void followTransactions() throws Exception {
        try (ClientSession session = client.startSession()) {
            session.withTransaction(() -> {
                accounts().updateOne(session, Filters.eq(1), Updates.inc("balance", -5));
                accounts().updateOne(session, Filters.eq(2), Updates.inc("balance", 5));
                air().insertOne(session, measurement(5, "vault", 5));
                return null;
            });
            session.startTransaction();
            accounts().insertOne(session, account(9, 9));
            session.abortTransaction();
        }
        List<String> found = connector.next(3);
        found.sort(null);
        equal(found, List.of("c air 5 vault 5", "u accounts 1 5", "u accounts 2 25"));
    }

    static void resume() throws Exception {
        connector.close();
        accounts().insertOne(account(4, 40));
        air().insertOne(measurement(6, "hall", 430));
        connector = new Connector(uri, offsets);
        equal(connector.next(2), List.of("c accounts 4 40", "c air 6 hall 430"));
        connector.close();
        equal(connector.changes.size(), 0);
        client.getDatabase(DATABASE).drop();
    }

    static void check(String name, Action action) {
        try {
            action.run();
            System.out.println("ok " + name);
        } catch (Throwable e) {
            String text = String.valueOf(e.getMessage()).replace('\n', ' ');
            System.out.println("not ok " + name + ": " + e.getClass().getSimpleName() + ": " + text);
        }
    }

    public static void main(String[] arguments) throws Exception {
        uri = System.getenv("NILOMETER_URI");
        offsets = Files.createTempFile("nilometer-debezium", ".offsets");
        client = MongoClients.create(uri);
        check("copy", Check::copy);
        check("follow_documents", Check::followDocuments);
        check("follow_measurements", Check::followMeasurements);
        check("follow_transactions", Check::followTransactions);
        check("resume", Check::resume);
        Files.deleteIfExists(offsets);
        // Threads of the engine may still be there after a failure.
        System.exit(0);
    }
}
