// SPDX-License-Identifier: Apache-2.0
//! The schemas of docs/json, and a check of the command's output against them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jsonschema::Validator;
use serde_json::Value;

/// The schemas by name, with what was validated against them.
pub struct Schemas {
    schemas: BTreeMap<String, (Value, Validator)>,
    pub used: BTreeSet<String>,
}

/// Allows only the keys that the schema names: a key that the page lacks is a mistake here,
/// although users must expect new ones.
fn close(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        if object.contains_key("properties") {
            object.insert("additionalProperties".into(), false.into());
        }
        object.values_mut().for_each(close);
    } else if let Some(array) = schema.as_array_mut() {
        array.iter_mut().for_each(close);
    }
}

impl Schemas {
    pub fn read() -> Schemas {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json");
        let mut schemas = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            let Some(name) = file.strip_suffix(".schema.json") else { continue };
            let schema: Value =
                serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            jsonschema::draft202012::meta::validate(&schema).unwrap();
            assert_eq!(schema["properties"]["schema"]["const"], format!("stanchion/{name}/1"));
            let mut closed = schema.clone();
            close(&mut closed);
            let options = jsonschema::options().should_validate_formats(true);
            schemas.insert(name.to_owned(), (schema, options.build(&closed).unwrap()));
        }
        assert!(schemas.len() > 10);
        Schemas { schemas, used: BTreeSet::new() }
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.schemas.keys().cloned().collect()
    }

    pub fn all(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.schemas.iter().map(|(name, (schema, _))| (name, schema))
    }

    /// Validates a document against the schema that it names.
    #[track_caller]
    pub fn check(&mut self, document: &Value) -> String {
        let name = document["schema"].as_str().unwrap_or_default();
        let name = name.strip_prefix("stanchion/").and_then(|name| name.strip_suffix("/1"));
        let name = name.unwrap_or_else(|| panic!("no schema is named: {document}")).to_owned();
        let (_, validator) = &self.schemas[&name];
        let errors: Vec<String> = validator
            .iter_errors(document)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?} in {document:#}");
        self.used.insert(name.clone());
        name
    }
}
