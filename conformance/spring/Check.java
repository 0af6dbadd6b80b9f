// Spring Data MongoDB with a time-series collection: entities are saved (replaced by their id), changed and removed.
//
// Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// listed in xtask/src/conformance/checks.rs.

import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.TreeMap;
import org.bson.Document;
import org.springframework.data.annotation.Id;
import org.springframework.data.domain.Sort;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.MongoTransactionManager;
import org.springframework.data.mongodb.core.BulkOperations;
import org.springframework.data.mongodb.core.FindAndModifyOptions;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.SimpleMongoClientDatabaseFactory;
import org.springframework.data.mongodb.core.mapping.TimeSeries;
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.transaction.support.TransactionTemplate;

public class Check {
    static final Instant START = Instant.parse("2024-01-01T00:00:00Z");

    @TimeSeries(collection = "readings", timeField = "time", metaField = "sensor")
    public static class Reading {
        @Id public String id;
        public Instant time;
        public String sensor;
        public Double value;
        public List<String> tags = new ArrayList<>();

        public Reading() {}

        Reading(int minute, String sensor, double value) {
            this.time = at(minute);
            this.sensor = sensor;
            this.value = value;
        }
    }

    interface Action {
        void run() throws Exception;
    }

    static MongoDatabaseFactory factory;
    static MongoTemplate template;

    static Instant at(int minute) {
        return START.plusSeconds(60L * minute);
    }

    static void equal(Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            throw new IllegalStateException("got " + got + ", expected " + expected);
        }
    }

    static Query where(String field, Object value) {
        return Query.query(Criteria.where(field).is(value));
    }

    static long count() {
        return template.count(new Query(), Reading.class);
    }

    static void createCollection() {
        template.getDb().drop();
        template.createCollection(Reading.class);
        Document listed = template.getDb().listCollections().filter(new Document("name", "readings")).first();
        equal(listed.getString("type"), "timeseries");
    }

    static void insertEntities() {
        Reading one = template.insert(new Reading(0, "hall", 1));
        equal(template.findById(one.id, Reading.class).value, 1.0);
        template.insertAll(List.of(new Reading(1, "hall", 2), new Reading(2, "attic", 3), new Reading(3, "attic", 4)));
        equal(count(), 4L);
    }

    /** Saving an entity with an id replaces it, or inserts it if it is absent. */
    static void saveById() {
        Reading known = template.findOne(where("value", 1.0), Reading.class);
        known.value = 10.0;
        known.tags.add("checked");
        template.save(known);
        Reading found = template.findById(known.id, Reading.class);
        equal(found.value, 10.0);
        equal(found.tags, List.of("checked"));
        equal(count(), 4L);
        Reading fresh = new Reading(4, "cellar", 5);
        fresh.id = "65920080f5b2c3d4e5f60718";
        template.save(fresh);
        template.save(fresh);
        equal(count(), 5L);
        equal(template.findById(fresh.id, Reading.class).sensor, "cellar");
        Reading withoutId = template.save(new Reading(5, "cellar", 6));
        equal(template.exists(where("id", withoutId.id), Reading.class), true);
        equal(count(), 6L);
    }

    static void saveToAnotherTimeAndSeries() {
        Reading known = template.findOne(where("value", 10.0), Reading.class);
        known.time = at(24 * 60);
        known.sensor = "roof";
        template.save(known);
        Reading found = template.findById(known.id, Reading.class);
        equal(found.time, at(24 * 60));
        equal(found.sensor, "roof");
        equal(count(), 6L);
    }

    static void updates() {
        equal(template.updateFirst(where("value", 2.0), new Update().inc("value", 1), Reading.class).getModifiedCount(), 1L);
        Update moved = new Update().set("sensor", "loft").push("tags", "moved");
        equal(template.updateMulti(where("sensor", "attic"), moved, Reading.class).getModifiedCount(), 2L);
        Query absent = where("sensor", "well");
        Update made = new Update().set("value", 9.0).setOnInsert("time", at(9));
        equal(template.upsert(absent, made, Reading.class).getUpsertedId() != null, true);
        equal(template.upsert(absent, made, Reading.class).getMatchedCount(), 1L);
        equal(count(), 7L);
    }

    static void findAndChange() {
        Reading after = template.findAndModify(
            where("sensor", "well"), new Update().inc("value", 1),
            FindAndModifyOptions.options().returnNew(true), Reading.class);
        equal(after.value, 10.0);
        Reading other = new Reading(9, "well", 11);
        other.id = after.id;
        template.findAndReplace(where("id", after.id), other);
        equal(template.findById(after.id, Reading.class).value, 11.0);
        equal(template.findAndRemove(where("id", after.id), Reading.class).value, 11.0);
        equal(count(), 6L);
    }

    static void bulkOperations() {
        BulkOperations bulk = template.bulkOps(BulkOperations.BulkMode.UNORDERED, Reading.class);
        bulk.insert(List.of(new Reading(20, "hall", 20), new Reading(21, "hall", 21)));
        bulk.updateMulti(where("sensor", "loft"), new Update().set("value", 0.0));
        bulk.replaceOne(where("sensor", "roof"), new Reading(22, "roof", 22));
        bulk.remove(where("sensor", "cellar"));
        var result = bulk.execute();
        equal(result.getInsertedCount(), 2);
        equal(result.getMatchedCount(), 3);
        equal(result.getDeletedCount(), 2);
        TreeMap<String, Long> bySensor = new TreeMap<>();
        for (Reading reading : template.find(new Query().with(Sort.by("time")), Reading.class)) {
            bySensor.merge(reading.sensor, 1L, Long::sum);
        }
        equal(bySensor.toString(), "{hall=3, loft=2, roof=1}");
    }

    static void transactions() {
        TransactionTemplate transaction = new TransactionTemplate(new MongoTransactionManager(factory));
        template.insert(new Document("_id", "a").append("balance", 10), "accounts");
        Query account = where("_id", "a");
        transaction.executeWithoutResult(status -> {
            template.updateFirst(account, new Update().inc("balance", -4), "accounts");
            template.insert(new Reading(30, "vault", 4));
            equal(template.count(where("sensor", "vault"), Reading.class), 1L);
        });
        transaction.executeWithoutResult(status -> {
            template.updateFirst(account, new Update().inc("balance", -100), "accounts");
            template.insert(new Reading(31, "vault", 100));
            status.setRollbackOnly();
        });
        equal(template.findOne(account, Document.class, "accounts").getInteger("balance"), 6);
        equal(template.remove(where("sensor", "vault"), Reading.class).getDeletedCount(), 1L);
    }

    static void removeEntities() {
        Reading known = template.findOne(where("sensor", "roof"), Reading.class);
        equal(template.remove(known).getDeletedCount(), 1L);
        equal(template.remove(known).getDeletedCount(), 0L);
        equal(template.remove(where("sensor", "hall"), Reading.class).getDeletedCount(), 3L);
        equal(template.findAllAndRemove(new Query(), Reading.class).size(), 2);
        equal(count(), 0L);
        template.getDb().drop();
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

    public static void main(String[] arguments) {
        try (MongoClient client = MongoClients.create(System.getenv("NILOMETER_URI"))) {
            factory = new SimpleMongoClientDatabaseFactory(client, "conformance_spring");
            template = new MongoTemplate(factory);
            check("create_collection", Check::createCollection);
            check("insert_entities", Check::insertEntities);
            check("save_by_id", Check::saveById);
            check("save_to_another_time_and_series", Check::saveToAnotherTimeAndSeries);
            check("updates", Check::updates);
            check("find_and_change", Check::findAndChange);
            check("bulk_operations", Check::bulkOperations);
            check("transactions", Check::transactions);
            check("remove_entities", Check::removeEntities);
        }
    }
}
