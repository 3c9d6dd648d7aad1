"""The signature of an MLflow model: reads files with its types, and checks tables where ``mlflow`` does not."""

import json

_TYPES = {
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "object",
    "binary": "object",
}


class SignatureError(Exception):
    """The input does not fit the signature."""


class Signature:
    """The inputs of a model: columns, tensors, or neither."""

    def __init__(self, inputs=()):
        self.columns = [entry for entry in inputs if entry.get("type") != "tensor"]
        self.tensors = [entry for entry in inputs if entry.get("type") == "tensor"]

    @classmethod
    def of_model(cls, about):
        """Returns the signature in the content of ``MLmodel``."""
        inputs = (about.get("signature") or {}).get("inputs")
        if isinstance(inputs, str):
            inputs = json.loads(inputs)
        return cls(inputs or ())

    def read_csv(self, path):
        """Returns a DataFrame with the types of the columns in the signature; others are inferred."""
        import pandas

        header = pandas.read_csv(path, nrows=0).columns
        positions = dict(enumerate(header))
        given = {name: position for position, name in positions.items()}
        types, instants = {}, []
        for position, column in enumerate(self.columns):
            name = column["name"] if "name" in column else positions.get(position)
            if name not in given:
                continue
            kind = column.get("type")
            if kind == "datetime":
                instants.append(name)
            elif kind in _TYPES:
                types[name] = _TYPES[kind]
        return pandas.read_csv(path, dtype=types, parse_dates=instants)

    def read_image(self, path):
        """Returns the array of an image, or a dictionary with it if the tensor has a name; without a signature a batch
        of one. A signature of columns takes images as one column of bytes."""
        if self.columns:
            return self._read_bytes(path)
        try:
            import numpy
            from PIL import Image
        except ImportError as error:
            raise ImportError(f"images need the package pillow: add it to the environment ({error})") from None
        if len(self.tensors) > 1:
            names = ", ".join(str(tensor.get("name")) for tensor in self.tensors)
            raise SignatureError(f"An image is one tensor, and the signature has {len(self.tensors)}: {names}")
        with Image.open(path) as image:
            array = numpy.asarray(image)
        if not self.tensors:
            return array[None]
        (tensor,) = self.tensors
        array = _batch_of_any_size(array) if _is_of_any_size(tensor) else _as_tensor(array, tensor)
        return {tensor["name"]: array} if tensor.get("name") else array

    def _read_bytes(self, path):
        import pandas

        kinds = [column.get("type") for column in self.columns]
        if kinds != ["binary"]:
            raise SignatureError(
                f"An image is one column of type binary, and the signature has {', '.join(map(str, kinds))}"
            )
        with open(path, "rb") as file:
            return pandas.DataFrame({self.columns[0].get("name", 0): [file.read()]})

    def enforce(self, argument):
        """Returns the argument of ``predict`` as ``mlflow`` would pass it on."""
        if not hasattr(argument, "columns"):
            return argument
        if len(self.tensors) == 1 and "name" not in self.tensors[0]:
            return _as_tensor(argument.to_numpy(), self.tensors[0])
        if self.tensors:
            raise SignatureError("A table for named tensors needs the package mlflow: add it to the environment")
        if not self.columns:
            return argument
        if "name" not in self.columns[0]:
            if len(argument.columns) < len(self.columns):
                wanted, found = len(self.columns), len(argument.columns)
                raise SignatureError(f"The signature has {wanted} columns, and the file {found}")
            return argument.iloc[:, : len(self.columns)]
        names = [column["name"] for column in self.columns]
        optional = {column["name"] for column in self.columns if not column.get("required", True)}
        missing = [name for name in names if name not in argument.columns and name not in optional]
        if missing:
            has = ", ".join(map(str, argument.columns))
            raise SignatureError(f"Columns of the signature are missing: {', '.join(missing)}; the file has: {has}")
        return argument[[name for name in names if name in argument.columns]]


def _is_of_any_size(tensor):
    """Returns whether a tensor is a batch of arrays, each with a shape of its own."""
    return tensor["tensor-spec"]["dtype"] == "object" and list(tensor["tensor-spec"]["shape"]) == [-1]


def _batch_of_any_size(array):
    import numpy

    batch = numpy.empty(1, dtype=object)
    batch[0] = array
    return batch


def _as_tensor(array, tensor):
    specification = tensor["tensor-spec"]
    array = array.astype(specification["dtype"])
    shape = specification["shape"]
    try:
        return array.reshape(shape)
    except ValueError:
        pass
    # Several sizes are free, so only a batch dimension can be added.
    if len(shape) == array.ndim + 1 and _fits(array.shape, shape[1:]):
        return array[None]
    if _fits(array.shape, shape):
        return array
    raise SignatureError(f"Its shape is {array.shape}, and that of the signature {tuple(shape)}")


def _fits(shape, wanted):
    return len(shape) == len(wanted) and all(size in (-1, has) for has, size in zip(shape, wanted, strict=True))
