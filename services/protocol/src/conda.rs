//! Conda files (`environment.yml`). The machine that checks a job and the nodes that run it read them with this code.
//!
//! Many conda files name only a version of Python and packages for pip; these need only a virtual environment. Packages
//! of conda itself need micromamba, mamba or conda.

use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};

/// Programs that create environments from conda files, in order of preference.
pub const CONDA_TOOLS: [&str; 3] = ["micromamba", "mamba", "conda"];
/// Conda packages that every virtual environment has.
const ALWAYS_THERE: [&str; 4] = ["python", "pip", "setuptools", "wheel"];
const PYTHON_MIN: (u32, u32) = (3, 10);
/// Packages that have the same name in conda and for pip. A name outside these lists may mean another project there.
#[rustfmt::skip]
const SAME_FOR_PIP: [&str; 67] = [
    "beautifulsoup4", "boto3", "catboost", "click", "cloudpickle", "cython", "dask", "datasets", "fastapi", "flask",
    "fsspec", "gensim", "h5py", "imageio", "ipykernel", "ipython", "jinja2", "joblib", "keras", "lightgbm", "lxml",
    "matplotlib", "mlflow", "networkx", "nltk", "numba", "numpy", "onnx", "onnxruntime", "openpyxl", "pandas", "pillow",
    "polars", "prophet", "protobuf", "psutil", "pyarrow", "pydantic", "pytest", "python-dateutil", "pytz", "pyyaml",
    "regex", "requests", "s3fs", "scikit-image", "scikit-learn", "scipy", "seaborn", "sentencepiece", "shap", "six",
    "spacy", "sqlalchemy", "statsmodels", "sympy", "tabulate", "tensorflow", "tokenizers", "torchaudio", "torchvision",
    "tqdm", "transformers", "typing-extensions", "urllib3", "xgboost", "xlrd",
];
/// Packages that pip knows by another name.
const OTHER_FOR_PIP: [(&str, &str); 8] = [
    ("matplotlib-base", "matplotlib"),
    ("msgpack-python", "msgpack"),
    ("opencv", "opencv-python-headless"),
    ("py-opencv", "opencv-python-headless"),
    ("py-xgboost", "xgboost"),
    ("pytorch", "torch"),
    ("pytorch-cpu", "torch"),
    ("typing_extensions", "typing-extensions"),
];

/// Why Gristmill cannot use a conda file.
#[derive(Debug, thiserror::Error)]
pub enum CondaError {
    /// The text is not YAML.
    #[error("it is not valid YAML: {0}")]
    Syntax(#[from] saphyr::ScanError),
    /// `dependencies` is missing, or is not a list.
    #[error("it has no list `dependencies`, as conda files have")]
    NoDependencies,
    /// An entry is neither a text nor a mapping with `pip`.
    #[error("an entry of `dependencies` is neither a package nor `pip`")]
    UnknownEntry,
    /// `pip` holds something other than texts.
    #[error("`pip` is not a list of texts")]
    BadPip,
    /// The Python package does not support the requested version.
    #[error("it asks for Python {0}.{1}, and scripts need {min_major}.{min_minor} or newer", min_major = PYTHON_MIN.0, min_minor = PYTHON_MIN.1)]
    OldPython(u32, u32),
}

/// The requirements in a conda file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CondaFile {
    /// Major and minor version of Python.
    pub python: Option<(u32, u32)>,
    /// Packages for pip, as lines of a requirements file.
    pub pip: Vec<String>,
    /// Packages for conda.
    pub packages: Vec<String>,
}

impl CondaFile {
    /// Whether a file has the extension of conda files.
    pub fn is_named(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml")
    }

    /// Reads the text of a conda file.
    pub fn parse(text: &str) -> Result<Self, CondaError> {
        let documents = Yaml::load_from_str(text)?;
        let dependencies =
            documents.first().and_then(|document| document.as_mapping_get("dependencies"));
        let Some(dependencies) = dependencies.filter(|node| node.is_sequence()) else {
            return Err(CondaError::NoDependencies);
        };
        let mut file = Self::default();
        for node in items(dependencies) {
            match (node.as_str(), node.as_mapping_get("pip")) {
                (Some(package), _) => file.add(package)?,
                (None, Some(lines)) => {
                    let lines = items(lines).map(|line| line.as_str().map(str::to_owned));
                    file.pip.extend(lines.collect::<Option<Vec<_>>>().ok_or(CondaError::BadPip)?);
                }
                (None, None) => return Err(CondaError::UnknownEntry),
            }
        }
        Ok(file)
    }

    /// Returns requirements for pip that stand for the packages of conda, or those that only conda installs.
    pub fn for_pip(&self) -> Result<Vec<String>, Vec<&str>> {
        let found = |package: &String| requirement(package);
        let missing: Vec<&str> = self
            .packages
            .iter()
            .filter(|package| found(package).is_none())
            .map(String::as_str)
            .collect();
        if missing.is_empty() {
            Ok(self.packages.iter().filter_map(found).collect())
        } else {
            Err(missing)
        }
    }

    fn add(&mut self, package: &str) -> Result<(), CondaError> {
        let (name, version) = parts(package);
        if !ALWAYS_THERE.contains(&name) {
            self.packages.push(package.to_owned());
        }
        // Exact versions are `=3.11`, `==3.11.4`, `=3.11.*` and `3.11`. A range leaves the choice to Gristmill.
        let exact = version.trim_start_matches('=').trim();
        let mut parts = exact.split(['.', '=', ' ']).map(str::parse::<u32>);
        if name == "python"
            && let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next())
        {
            if (major, minor) < PYTHON_MIN {
                return Err(CondaError::OldPython(major, minor));
            }
            self.python = Some((major, minor));
        }
        Ok(())
    }
}

/// Returns the name of a package and what follows it.
fn parts(package: &str) -> (&str, &str) {
    let plain = package.rsplit("::").next().unwrap_or(package).trim();
    let end = plain.find(|character: char| " =<>!~[".contains(character)).unwrap_or(plain.len());
    (&plain[..end], plain[end..].trim())
}

/// Returns what pip calls a package of conda, with its version. `None`: pip has no such package, or no such version.
fn requirement(package: &str) -> Option<String> {
    let (name, version) = parts(package);
    let name = name.to_lowercase();
    let other = || OTHER_FOR_PIP.iter().find(|(conda, _)| *conda == name).map(|(_, pip)| *pip);
    let name = SAME_FOR_PIP.iter().find(|same| **same == name).copied().or_else(other)?;
    if version.contains(['[', '|']) {
        return None;
    }
    // `=1.26=build` and `==1.26=build`: pip knows no builds.
    let fuzzy = version.strip_prefix('=').filter(|rest| !rest.starts_with('='));
    Some(match (version.chars().next(), fuzzy) {
        (None, _) => name.to_owned(),
        (_, Some(version)) => match version.trim().split_once('=') {
            Some((exact, _)) => format!("{name}=={exact}"),
            None => format!("{name}=={}.*", version.trim().trim_end_matches(".*")),
        },
        (Some('='), None) => {
            format!("{name}=={}", version[2..].split('=').next().unwrap_or_default().trim())
        }
        (Some('0'..='9'), None) => {
            format!("{name}=={}", version.split([' ', '=']).next().unwrap_or_default())
        }
        _ => format!("{name}{version}"),
    })
}

fn items<'a>(node: &'a Yaml<'a>) -> impl Iterator<Item = &'a Yaml<'a>> {
    (0..).map_while(|index| node.as_sequence_get(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_packages_pip_lines_and_version_of_python() {
        let file = "\
name: project
channels: [conda-forge]
dependencies:
  - python=3.11.4
  - pip>=22
  - conda-forge::numpy=1.26
  - scikit-learn
  - pip:
    - azureml-defaults
    - torch==2.3
    - -r more.txt
";
        let parsed = CondaFile::parse(file).expect("it is one");
        assert_eq!(parsed.python, Some((3, 11)));
        assert_eq!(parsed.pip, ["azureml-defaults", "torch==2.3", "-r more.txt"]);
        assert_eq!(parsed.packages, ["conda-forge::numpy=1.26", "scikit-learn"]);
        for (python, version) in [
            ("python", None),
            ("python 3.12", Some((3, 12))),
            ("python==3.10.*", Some((3, 10))),
            ("python>=3.9", None),
            ("defaults::python=3.13=h1234_0", Some((3, 13))),
        ] {
            let parsed =
                CondaFile::parse(&format!("dependencies: ['{python}', pip: [a]]")).expect(python);
            assert_eq!((parsed.python, parsed.packages.len()), (version, 0), "{python}");
        }
    }

    #[test]
    fn packages_of_conda_become_requirements_of_pip() {
        for (package, requirement) in [
            ("numpy", "numpy"),
            ("conda-forge::numpy=1.26", "numpy==1.26.*"),
            ("numpy=1.26.*", "numpy==1.26.*"),
            ("numpy=1.26.4=py311h64a7726_0", "numpy==1.26.4"),
            ("numpy==1.26.4", "numpy==1.26.4"),
            ("numpy 1.26.4", "numpy==1.26.4"),
            ("numpy >=1.2,<2", "numpy>=1.2,<2"),
            ("numpy!=1.2", "numpy!=1.2"),
            ("pytorch=2.3", "torch==2.3.*"),
            ("Pillow", "pillow"),
        ] {
            let file = CondaFile { packages: vec![package.to_owned()], ..CondaFile::default() };
            assert_eq!(file.for_pip(), Ok(vec![requirement.to_owned()]), "{package}");
        }
        let packages = ["numpy", "libgdal=3.8", "numpy[build=mkl]", "numpy 1.2|1.3"]
            .map(str::to_owned)
            .to_vec();
        let file = CondaFile { packages, ..CondaFile::default() };
        assert_eq!(file.for_pip(), Err(vec!["libgdal=3.8", "numpy[build=mkl]", "numpy 1.2|1.3"]));
    }

    #[test]
    fn invalid_conda_file_is_rejected_with_reason() {
        for (text, expected) in [
            ("a: [", "not valid YAML"),
            ("name: x", "no list `dependencies`"),
            ("dependencies: numpy", "no list `dependencies`"),
            (
                "dependencies: [python=3.8]",
                "it asks for Python 3.8, and scripts need 3.10 or newer",
            ),
            ("dependencies: [{conda: [a]}]", "neither a package nor `pip`"),
        ] {
            let error = CondaFile::parse(text).expect_err(text);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
