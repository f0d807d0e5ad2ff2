// SPDX-License-Identifier: Apache-2.0
//! Which file uses which, read from the syntax of a crate's sources.
//!
//! - A name counts where it is defined: an import through a `mod.rs` that re-exports it is an arrow
//!   to the file of its definition. The re-export itself is an arrow of the `mod.rs`.
//! - Counted are `use` in every form (grouped, renamed, glob, `pub use`), paths in code that begin
//!   with `crate`, `self`, `super`, a module or an import, and such paths inside macro calls. Not
//!   counted are methods of values whose type is not named.
//! - Naming only a module is not an arrow; using an item through it is.
//! - Code under `#[cfg(test)]` is skipped: tests may use everything.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A file of a crate: its path below `src`, without `.rs`, and its text.
#[derive(Clone)]
pub struct Source {
    pub file: String,
    pub text: String,
}

impl Source {
    /// The module that the file is: a `mod.rs` is its folder, and the root is the empty path.
    fn module(&self) -> String {
        match self.file.as_str() {
            "lib" | "main" | "mod" => String::new(),
            file => file.strip_suffix("/mod").unwrap_or(file).to_owned(),
        }
    }
}

/// From a file to the files that it uses, each with one of the paths that show it.
pub type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The sources of a crate, read.
#[derive(Clone, Default)]
pub struct Parsed {
    scopes: BTreeMap<String, Scope>,
    wrong: Vec<String>,
}

impl Parsed {
    pub fn of(sources: &[Source]) -> Parsed {
        let mut parsed = Parsed::default();
        sources.iter().for_each(|source| parsed.set(source));
        parsed
    }

    /// Replaces the file with the same name, if there is one.
    pub fn set(&mut self, source: &Source) {
        self.scopes.retain(|_, scope| scope.file != source.file);
        match syn::parse_file(&source.text) {
            Ok(file) => {
                collect_items(&source.file, &source.module(), &file.items, &mut self.scopes);
            }
            Err(error) => self.wrong.push(format!("{}: {error}", source.file)),
        }
    }
}

/// The arrows of a crate, and the paths that could not be resolved.
pub fn arrows(sources: &Parsed) -> (Arrows, Vec<String>) {
    let Parsed { scopes, wrong } = sources;
    let mut wrong = wrong.clone();
    let tests: BTreeSet<String> = scopes.values().flat_map(|s| s.test_modules.clone()).collect();
    let is_test = |module: &str| {
        tests.iter().any(|test| {
            module.strip_prefix(test.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/'))
        })
    };
    let mut arrows = Arrows::new();
    for (module, scope) in scopes.iter().filter(|(module, _)| !is_test(module)) {
        let from = arrows.entry(scope.file.clone()).or_default();
        for path in &scope.paths {
            let found = Resolver { scopes, depth: 0 }.files_of(module, path);
            let must_resolve = matches!(path[0].as_str(), "crate" | "self" | "super");
            match found {
                None if must_resolve => {
                    wrong.push(format!("{}: {} names nothing", scope.file, path.join("::")));
                }
                None => {}
                Some(files) => {
                    for file in files.into_iter().filter(|file| *file != scope.file) {
                        from.entry(file).or_insert_with(|| path.join("::"));
                    }
                }
            }
        }
    }
    (arrows, wrong)
}

/// Groups of files that reach each other.
pub fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|file| (file.as_str(), reachable(arrows, file))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (file, from_here) in &reached {
        if !from_here.contains(file) || circles.iter().any(|circle| circle.contains(*file)) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|r| r.contains(file));
        circles.push(from_here.iter().filter(back).map(|file| (*file).to_owned()).collect());
    }
    circles
}

fn reachable<'a>(arrows: &'a Arrows, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in arrows.get(file).into_iter().flat_map(|to| to.keys()) {
            if found.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    found
}

/// The names in a module's scope, and the paths in it.
#[derive(Clone, Default)]
struct Scope {
    file: String,
    children: BTreeSet<String>,
    defined: BTreeSet<String>,
    imports: BTreeMap<String, Vec<Vec<String>>>,
    globs: Vec<Vec<String>>,
    paths: BTreeSet<Vec<String>>,
    test_modules: Vec<String>,
}

fn collect_items(file: &str, module: &str, items: &[Item], scopes: &mut BTreeMap<String, Scope>) {
    let mut scope = Scope { file: file.to_owned(), ..Scope::default() };
    for item in items {
        if let Item::Mod(item) = item {
            let child = join(module, &item.ident.to_string());
            match &item.content {
                _ if is_for_tests(&item.attrs) => scope.test_modules.push(child),
                Some((_, items)) => {
                    scope.children.insert(item.ident.to_string());
                    collect_items(file, &child, items, scopes);
                }
                None => {
                    scope.children.insert(item.ident.to_string());
                }
            }
            continue;
        }
        if is_for_tests(attributes(item)) {
            continue;
        }
        if let Some(name) = defined_name(item) {
            scope.defined.insert(name);
        }
        scope.visit_item(item);
    }
    scopes.insert(module.to_owned(), scope);
}

fn join(module: &str, child: &str) -> String {
    if module.is_empty() { child.to_owned() } else { format!("{module}/{child}") }
}

/// Whether an item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition: Vec<String> = words(list.tokens.clone());
        let all = condition.first().is_some_and(|word| word == "all" || word == "test");
        list.path.is_ident("cfg") && all && condition.iter().any(|word| word == "test")
    })
}

fn words(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(word) => vec![word.to_string()],
            TokenTree::Group(group) => words(group.stream()),
            _ => Vec::new(),
        })
        .collect()
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl Scope {
    fn add_use(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_use(&tree.tree, path);
            }
            UseTree::Group(tree) => {
                tree.items.iter().for_each(|tree| self.add_use(tree, path.clone()));
            }
            UseTree::Glob(_) => {
                self.globs.push(path.clone());
                path.push("*".into());
                self.paths.insert(path);
            }
            UseTree::Name(tree) => self.add_import(path, &tree.ident.to_string(), None),
            UseTree::Rename(tree) => {
                let name = tree.rename.to_string();
                self.add_import(path, &tree.ident.to_string(), Some(name));
            }
        }
    }

    fn add_import(&mut self, mut path: Vec<String>, last: &str, name: Option<String>) {
        let name =
            name.or_else(|| if last == "self" { path.last().cloned() } else { Some(last.into()) });
        if last != "self" {
            path.push(last.to_owned());
        }
        if path.is_empty() {
            return;
        }
        self.paths.insert(path.clone());
        self.imports.entry(name.unwrap_or_default()).or_default().push(path);
    }

    /// Paths in the tokens of a macro call.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) if path.is_empty() || colons == 2 => {
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.add_path(std::mem::take(&mut path));
                    colons = 0;
                    match other {
                        TokenTree::Ident(word) => path.push(word.to_string()),
                        TokenTree::Group(group) => self.add_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.add_path(path);
    }

    fn add_path(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Scope {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.add_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` uses nothing.
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {
        // Nor does a derive or a lint.
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }
}

#[derive(Clone, Copy)]
struct Resolver<'a> {
    scopes: &'a BTreeMap<String, Scope>,
    depth: usize,
}

/// What a path may mean: the name of a module and of something else may be the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Meaning {
    Module(String),
    DefinedIn(String),
    OfAnotherCrate,
}

impl Resolver<'_> {
    /// The files whose definitions a path names; `None` when it leads out of the crate or nowhere.
    fn files_of(self, module: &str, path: &[String]) -> Option<BTreeSet<String>> {
        if let [module_path @ .., last] = path
            && last == "*"
        {
            let meanings = self.follow(module, module_path);
            let file = |meaning| match meaning {
                Meaning::Module(module) => Some(self.scopes.get(&module)?.file.clone()),
                Meaning::DefinedIn(file) => Some(file),
                Meaning::OfAnotherCrate => None,
            };
            let files: BTreeSet<String> = meanings.into_iter().filter_map(file).collect();
            return (!files.is_empty()).then_some(files);
        }
        let meanings = self.follow(module, path);
        if meanings.is_empty() {
            return None;
        }
        let defined = |meaning| match meaning {
            Meaning::DefinedIn(file) => Some(file),
            Meaning::Module(_) | Meaning::OfAnotherCrate => None,
        };
        Some(meanings.into_iter().filter_map(defined).collect())
    }

    fn follow(self, module: &str, path: &[String]) -> BTreeSet<Meaning> {
        let mut here = BTreeSet::from([Meaning::Module(module.to_owned())]);
        for (at, segment) in path.iter().enumerate() {
            let mut next = BTreeSet::new();
            for meaning in here {
                match meaning {
                    // The rest is a variant or an associated item.
                    Meaning::DefinedIn(file) => {
                        next.insert(Meaning::DefinedIn(file));
                    }
                    Meaning::OfAnotherCrate => {
                        next.insert(Meaning::OfAnotherCrate);
                    }
                    Meaning::Module(module) => next.extend(self.step(&module, segment, at == 0)),
                }
            }
            // A path that begins outside of this crate.
            if at == 0 && next.is_empty() {
                next.insert(Meaning::OfAnotherCrate);
            }
            here = next;
        }
        here
    }

    /// What one segment means in a module.
    fn step(mut self, module: &str, segment: &str, is_first: bool) -> BTreeSet<Meaning> {
        match segment {
            "crate" => return BTreeSet::from([Meaning::Module(String::new())]),
            "self" => return BTreeSet::from([Meaning::Module(module.to_owned())]),
            "super" => {
                let parent = module.rsplit_once('/').map_or("", |(parent, _)| parent);
                return BTreeSet::from([Meaning::Module(parent.to_owned())]);
            }
            _ => {}
        }
        let mut found = BTreeSet::new();
        self.depth += 1;
        let Some(scope) = self.scopes.get(module).filter(|_| self.depth < 16) else { return found };
        if scope.children.contains(segment) {
            found.insert(Meaning::Module(join(module, segment)));
        }
        if scope.defined.contains(segment) {
            found.insert(Meaning::DefinedIn(scope.file.clone()));
        }
        for path in scope.imports.get(segment).into_iter().flatten() {
            // `use name::x` of another crate, or an import that names itself.
            if !(is_first && path.len() == 1 && path[0] == segment) {
                found.extend(self.follow(module, path));
            }
        }
        if found.is_empty() {
            found.extend(scope.globs.iter().flat_map(|glob| {
                let modules = self.follow(module, glob);
                modules.into_iter().flat_map(|meaning| match meaning {
                    Meaning::Module(other) if other != module => self.step(&other, segment, false),
                    Meaning::OfAnotherCrate => BTreeSet::from([Meaning::OfAnotherCrate]),
                    _ => BTreeSet::new(),
                })
            }));
        }
        found
    }
}

/// Whether the code, except tests, has anything that is `unsafe`.
pub fn has_unsafe(text: &str) -> bool {
    let file = syn::parse_file(text).expect("the source is Rust");
    let mut search = UnsafeSearch(false);
    file.items.iter().for_each(|item| search.visit_item(item));
    search.0
}

struct UnsafeSearch(bool);

impl<'ast> Visit<'ast> for UnsafeSearch {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            other => attributes(other),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_unsafe(&mut self, _: &'ast syn::ExprUnsafe) {
        self.0 = true;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.0 |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0 |= item.unsafety.is_some();
        visit::visit_item_trait(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.0 |= signature.unsafety.is_some();
        visit::visit_signature(self, signature);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.0 |= words_of(&attribute.meta).iter().any(|word| word == "unsafe");
    }
}

fn words_of(meta: &syn::Meta) -> Vec<String> {
    match meta {
        syn::Meta::List(list) => {
            let name = list.path.get_ident().map(ToString::to_string);
            name.into_iter().chain(words(list.tokens.clone())).collect()
        }
        _ => Vec::new(),
    }
}
