//! What the change log says about a collection: the name that clients know it by.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::{Catalog, Collection, Namespace, View};
use crate::change_entry::{ChangeNotes, LoggedCollection};

impl Catalog {
    /// Returns empty notes of changes of `collection`. A collection that has no name yet is called by its identity, as
    /// `tmp.…`.
    pub(crate) fn change_notes(&self, collection: &Collection) -> ChangeNotes {
        // The commit of a transaction notes the changes of measurements.
        let is_noted_later = self.is_of_transaction() && collection.timeseries.is_some();
        if is_noted_later || self.log_part().is_none() {
            return ChangeNotes::off();
        }
        let now = self.current(collection);
        let name = match now {
            Some(now) => now.namespace.clone(),
            None => provisional_name(collection),
        };
        self.notes_named(collection, &name)
    }

    /// Returns empty notes of changes of a collection of this name.
    pub(super) fn notes_named(&self, collection: &Collection, name: &Namespace) -> ChangeNotes {
        let Some(part) = self.log_part() else {
            return ChangeNotes::off();
        };
        if name.database == "local" {
            return ChangeNotes::off();
        }
        let shown = name
            .timeseries_view()
            .filter(|_| collection.timeseries.is_some());
        let name = shown.as_ref().unwrap_or(name).to_string();
        let series = collection.timeseries.as_ref();
        let logged = LoggedCollection {
            uuid: collection.uuid,
            name: &name,
            time_field: series.map_or("", |series| &series.time_field),
            meta_field: series
                .and_then(|series| series.meta_field.as_deref())
                .unwrap_or(""),
        };
        ChangeNotes::new(part, logged).with_images(keeps_images(collection))
    }

    /// Returns empty notes of changes of a whole database.
    pub(super) fn notes_of_database(&self) -> ChangeNotes {
        let Some(part) = self.log_part() else {
            return ChangeNotes::off();
        };
        let none = LoggedCollection {
            uuid: [0; 16],
            name: "",
            time_field: "",
            meta_field: "",
        };
        ChangeNotes::new(part, none)
    }

    /// Returns empty notes of bins of a rollup. They are those of a time series: streams show documents, `local.oplog.rs` does not.
    pub(crate) fn notes_of_rollup(
        &self,
        name: &str,
        uuid: [u8; 16],
        time_field: &str,
    ) -> ChangeNotes {
        let Some(part) = self.log_part() else {
            return ChangeNotes::off();
        };
        let named = LoggedCollection {
            uuid,
            name,
            time_field,
            meta_field: "",
        };
        ChangeNotes::new(part, named)
    }

    /// Returns the definition of a view, and empty notes of its changes.
    pub(super) fn notes_of_view(&self, view: &View) -> (Document, ChangeNotes) {
        let options = view.definition();
        let part = self.log_part();
        let part = part.filter(|_| view.namespace.database != "local");
        let Some(part) = part else {
            return (options, ChangeNotes::off());
        };
        let rollup = view.rollup.as_ref();
        let named = LoggedCollection {
            uuid: rollup.map_or([0; 16], |rollup| rollup.uuid),
            name: &view.namespace.to_string(),
            time_field: "",
            meta_field: "",
        };
        (options, ChangeNotes::new(part, named))
    }

    /// Returns empty notes of changes of a prepared collection.
    pub(super) fn notes_of_preparation(&self, fresh: &Collection) -> ChangeNotes {
        self.notes_named(fresh, &provisional_name(fresh))
    }

    /// Notes that a prepared collection takes its name; `replaced` is the one that had it.
    pub(super) fn notes_of_installation(
        &self,
        fresh: &Collection,
        replaced: Option<&Collection>,
    ) -> ChangeNotes {
        let mut notes = self.notes_of_preparation(fresh);
        let target = &fresh.namespace;
        let shown = target
            .timeseries_view()
            .filter(|_| fresh.timeseries.is_some());
        notes.renamed(
            &shown.as_ref().unwrap_or(target).to_string(),
            replaced.map(|one| one.uuid),
        );
        notes
    }

    /// Notes that a collection is renamed.
    pub(super) fn notes_of_renaming(
        &self,
        collection: &Collection,
        (from, to): (&Namespace, &Namespace),
        dropped: Option<[u8; 16]>,
    ) -> ChangeNotes {
        let mut notes = self.notes_named(collection, from);
        let shown = to
            .timeseries_view()
            .filter(|_| collection.timeseries.is_some());
        notes.renamed(&shown.as_ref().unwrap_or(to).to_string(), dropped);
        notes
    }
}

/// Returns the options of a collection as they are logged.
pub(super) fn logged_options(collection: &Collection) -> Document {
    let mut out = DocumentBuilder::new();
    out.append_all(collection.options.as_ref());
    let timeseries = collection.timeseries.as_ref();
    out.append(
        "timeseries",
        timeseries.map(|options| options.to_document()),
    );
    out.finish()
}

/// The option of a collection whose documents are logged before and after their changes.
const IMAGES: &str = "changeStreamPreAndPostImages";

/// True if documents are logged before and after their changes.
fn keeps_images(collection: &Collection) -> bool {
    let images = collection.options.get(IMAGES);
    let images = images.as_document().map(|images| images.get("enabled"));
    matches!(images, Some(ValueRef::Bool(true)))
}

/// Returns the name of a collection that is prepared: it is in no entry of the catalog.
fn provisional_name(collection: &Collection) -> Namespace {
    let uuid = collection.uuid.iter();
    let uuid: String = uuid.map(|byte| format!("{byte:02x}")).collect();
    Namespace {
        database: collection.namespace.database.clone(),
        collection: format!("tmp.{uuid}"),
    }
}
