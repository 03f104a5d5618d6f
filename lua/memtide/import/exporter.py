"""Describes a PyTorch model to memtide: memtide import hands this program to the Python that the user names, which
needs nothing but torch.

The model is made on the meta device, where tensors have shapes and no numbers, and called twice with batches of
different sizes. What it calls is written down module by module: for each module the calls of its own forward, that is
torch's functions and its children, with the arguments; and which Python variable each value was bound to. A number that
grows with the batch is noted as a multiple of it. What these calls are in memtide is not known here.

argv[1] is the request as JSON, a description as JSON is all that is written to standard output (docs/from-pytorch.md
says what for):

    request      source   "package.module:name" or "file.py:name"
                 args     text of the constructor's arguments, "num_classes=10"
                 inputs   [{"shape": [3, 224, 224], "type": "float32"}, ...]: of one sample each
                 leaves   qualified names of the classes that are taken as a whole
                 weights  path of a file for what the state_dict has of modules that are called, or nothing
                 check    samples of a step whose numbers are wanted, too, or nothing
    description  modules  those that were called and their parents, parents first:
                   name, class ("torch.nn.Conv2d", "torchvision.models.resnet.Bottleneck")
                   unused    true where neither it nor a module in it is called
                   sequence  true where forward is nn.Sequential's
                   list      true where it has no forward of its own
                   args      of the constructor, [[name, value], ...]: those that are numbers, words, booleans, lists of them
                   options   of a leaf: its constructor's arguments as they are now
                   children  [[key, name], ...]
                   parameters, buffers  its own: [[key, shape, full name], ...]; of several full names the first one; of a
                             buffer that forward reads also its constant, of a parameter that starts as one number that number
                   inputs    of forward: how many values
                   calls     [{"call": name of a child, whose args are all of forward's if it is no leaf, or "op": name of a function, "args": [...], "named": {...},
                               "out": values, "where": file:line, "bound": [[variable, value], ...],
                               "gone": [variable, ...],
                             "cut": true where a gradient ends that something it reads would have (torch.no_grad())}]
                   returns   values
                   shapes    of all values, each with the batch first as {"batch": n}
                   again     of further calls of the module the same four, of those that are other ones than the first's
                 kept      names of attributes that hold a value of forward until the next one
                 evaluation  [[what, where], ...]: what evaluation computes and the training does not, or the reverse
                 frozen    full names of parameters without a gradient (requires_grad is False)
                 constants {name: {"type": "float32" or "int64", "shape", "values"}, or {"type": "mask", "shape", "diagonal", "upper"} where they are
                         booleans, true in a triangle of the last two dimensions}: tensors that depend on no input and no
                         parameter. What forward makes them of is not described: {"op": "constant", "constant": name} is a
                         call that gives one, before the first call that reads it, with "buffer": name of a buffer and "part":
                         [[dimension, start, length], ...] of what is a view of it. Of a mask there is also "made": ["ones", "eq", ...], the
                         functions that have made it, and "of": [type, rows, columns] of the buffer that they read
                 outputs  shapes of what the model gives, of one sample
                 (an argument {"outside": shape, "of": "booleans", "infinities", "size" or "type"} is a constant that is not described)
                 task     what the outputs are: "tokens" (logits of each token), "classes" (logits, dimension 1), "values"
                 check    of that step: batch, inputs, targets, loss, outputs, gradients {name: norm}; with weights
                 source, inputs  as in the request
                 torch    its version
                 error    {"kind", "message", "where"}: instead of all that

Values are numbered within a module: its inputs first, then what each call gives. An argument is {"value": n},
{"parameter": full name}, {"batch": n} (n times the batch), {"word": text} for what JSON has no word for, or itself.
"bound" says what variables have been bound to since the call before, "gone" which are no more there: those of a function that has returned."""
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import re
import struct
import sys
import traceback

BATCHES = (3, 5)  # of the two traces


class Refused(Exception):
    """What the user is told in one line; kind: whose mistake it is"""
    def __init__(self, kind, message, where=""):
        super().__init__(message)
        self.kind, self.message, self.where = kind, message, where


def first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


try:
    import torch
    from torch import nn
    import torch.utils.checkpoint
    from torch.overrides import TorchFunctionMode, resolve_name
except Exception as missing:  # whatever the import raises: told by main
    torch = None
    without_torch = missing
    TorchFunctionMode = object

TORCH = os.path.dirname(torch.__file__) + os.sep if torch else ""


def is_torchs(path):
    """Or this program's own, which has no file"""
    return path.startswith(TORCH) or path.startswith("<")


def place(frame):
    """file:line of the innermost line that is not torch's"""
    while frame and is_torchs(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def place_of_error(error):
    lines = [one for one in traceback.extract_tb(error.__traceback__)
             if not is_torchs(one.filename) and f"{os.sep}importlib{os.sep}" not in one.filename]
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else ""


# ---- the constructor and its model

def find_constructor(source):
    module, _, name = source.rpartition(":")
    if not module or not name:
        raise Refused("usage", f'expected MODULE:NAME or FILE.py:NAME, found "{source}"')
    try:
        if module.endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(module)))
            spec = importlib.util.spec_from_file_location("imported_model", module)
            loaded = importlib.util.module_from_spec(spec)
            sys.modules["imported_model"] = loaded
            spec.loader.exec_module(loaded)
        else:
            sys.path.insert(0, os.getcwd())
            loaded = importlib.import_module(module)
    except Exception as error:
        raise Refused("source", f"cannot import {module}: {first_line(error)}", place_of_error(error)) from error
    found = loaded
    for part in name.split("."):
        if not hasattr(found, part):
            known = [one for one in dir(loaded) if not one.startswith("_") and callable(getattr(loaded, one))]
            raise Refused("source", f"{module} has no {name}; it has {', '.join(known[:20])}")
        found = getattr(found, part)
    return found


def arguments_of(text):
    if not text:
        return (), {}
    try:
        return eval(f"_call({text})", {"_call": lambda *args, **named: (args, named), "torch": torch, "nn": nn})
    except Exception as error:
        raise Refused("usage", f'--args: expected arguments such as num_classes=10, found "{text}": '
                      f"{first_line(error)}") from error


made = {}  # of each module that was constructed, by its id: (itself, arguments, named arguments)


@contextlib.contextmanager
def noting_arguments():
    """Writes down with which arguments modules are made."""
    def new(cls, *args, **named):
        module = object.__new__(cls)
        made[id(module)] = module, args, named
        return module

    nn.Module.__new__ = new
    try:
        yield
    finally:
        nn.Module.__new__ = lambda cls, *args, **named: object.__new__(cls)  # a __new__ that was deleted leaves its traces


@contextlib.contextmanager
def without_initialisation():
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *args, **options: tensor)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(nn.init, name, function)


class FirstValues(TorchFunctionMode):
    """Notes which tensors a constructor makes that have the same number everywhere"""
    MADE = {"ones": 1, "zeros": 0, "ones_like": 1, "zeros_like": 0, "ones_": 1, "zeros_": 0, "zero_": 0}
    GIVEN = {"full": 1, "full_like": 1, "fill_": 1, "constant_": 1}  # the argument's place

    def __init__(self):
        super().__init__()
        self.by_storage = {}  # (a tensor that has it, the number)

    def number_of(self, tensor):
        return self.by_storage.get(tensor.untyped_storage()._cdata, (None, None))[1]

    def number_made(self, name, args, named):
        """What the function makes of a whole tensor, or nothing"""
        if name in self.GIVEN:
            number = args[self.GIVEN[name]] if len(args) > self.GIVEN[name] else named.get("fill_value", named.get("val", named.get("value")))
        elif name in ("mul", "rmul") and len(args) == 2:
            one, other = args if isinstance(args[0], torch.Tensor) else args[::-1]
            first = self.number_of(one)
            number = None if first is None or not isinstance(other, (int, float)) else first * other
        else:
            number = self.MADE.get(name)
        return number if isinstance(number, (int, float)) and abs(number) < float("inf") else None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        op = resolve_name(func) or getattr(func, "__name__", str(func))
        changed = tensors_in([args, kwargs], [])[:1] if IN_PLACE.search(op) else tensors_in(kwargs.get("out"), [])
        for one in changed:
            self.by_storage.pop(one.untyped_storage()._cdata, None)
        name = op.rsplit(".", 1)[-1].replace("__", "")
        number = self.number_made(name, args, kwargs)
        for one in [] if number is None else tensors_in(result, []):
            storage = one.untyped_storage()
            if one.numel() * one.element_size() == storage.nbytes():
                self.by_storage[storage._cdata] = one, number
        return result


def construct(make, args, named):
    try:
        model = make(*args, **named)
    except Exception as error:
        raise Refused("source", f"the constructor raises {first_line(error)}", place_of_error(error)) from error
    if not isinstance(model, nn.Module):
        raise Refused("source", f"the constructor gives a {type(model).__name__}, not a torch.nn.Module")
    refuse_hooks(model)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if nn.parameter.is_lazy(parameter):
            raise Refused("source", f"the parameter {name} has no shape yet: expected a function that makes the model and calls it once")
        if parameter.dtype != torch.float32:
            raise Refused("source", f"the parameter {name} is {parameter.dtype}: expected torch.float32 (model.float()); the script's setting "
                          "precision says in which types it is trained")
    return model.train()


# What a script has no word for: functions of the user's that change what a call computes, or read it, beside forward. (Forward hooks of the
# model's own modules are part of the calls that are traced.) The attributes in which torch keeps them, and who puts them there
HOOKS_OF_PARAMETERS = {"_backward_hooks": "register_hook", "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook"}
HOOKS_OF_MODULES = {"_backward_hooks": "register_full_backward_hook", "_backward_pre_hooks": "register_full_backward_pre_hook"}
HOOKS_OF_ALL = {f"_global_{kind}_hooks": f"register_module_{name}_hook" for kind, name in
                (("forward", "forward"), ("forward_pre", "forward_pre"), ("backward", "full_backward"),
                 ("backward_pre", "full_backward_pre"))}
HOOKS_OF_VALUES = re.compile(r"\.(register_hook|register_post_accumulate_grad_hook|retain_grad)$")


def refuse_hooks(model):
    def look(thing, attributes, whose):
        for attribute, name in attributes.items():
            for hook in (getattr(thing, attribute, None) or {}).values():
                code = getattr(hook, "__code__", None)
                where = f"{code.co_filename}:{code.co_firstlineno}" if code and not is_torchs(code.co_filename) else ""
                raise Refused("model", f"{whose} has a hook ({name}), which is not imported: expected the model without it", where)

    for name, parameter in model.named_parameters(remove_duplicate=False):
        look(parameter, HOOKS_OF_PARAMETERS, f"the parameter {name}")
    for name, module in model.named_modules():
        look(module, HOOKS_OF_MODULES, f"the module {name or 'itself'} ({class_name(module)})")
    look(nn.modules.module, HOOKS_OF_ALL, "every module")


def make_meta(make, args, named):
    """On the meta device; a constructor that wants numbers is given them, on the CPU. -> the model, and the numbers that whole parameters start
    as, by their names: only of those on the meta device"""
    made.clear()
    try:
        with noting_arguments(), torch.device("meta"), FirstValues() as first:
            model = construct(make, args, named)
        return model, {name: number for name, one in model.named_parameters() for number in [first.number_of(one)] if number is not None}
    except Refused:
        made.clear()
        with noting_arguments(), without_initialisation():
            return construct(make, args, named).to("meta"), {}


def inputs_of(request, batch, device="meta"):
    def one(spec):
        kind = getattr(torch, spec["type"])
        if device == "meta":
            return torch.empty(batch, *spec["shape"], dtype=kind, device="meta")
        if kind.is_floating_point:
            return torch.randn(batch, *spec["shape"], dtype=kind)
        return torch.randint(0, spec.get("below", 2), (batch, *spec["shape"]), dtype=kind)
    return [one(spec) for spec in request["inputs"]]


# ---- tracing

def class_name(module):
    """As it is written: torch.nn.Conv2d"""
    kind = type(module)
    if getattr(nn, kind.__name__, None) is kind:
        return f"torch.nn.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def is_leaf(module, leaves):
    """Is it taken as a whole? Not where hooks, or a forward of its own, make something else of what its class does."""
    altered = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return class_name(module) in leaves and not altered


def tensors_in(thing, found):
    """All tensors of nested lists, tuples, dicts and of the objects that models return, in order"""
    if isinstance(thing, torch.Tensor):
        found.append(thing)
    elif isinstance(thing, (list, tuple)):
        for one in thing:
            tensors_in(one, found)
    elif isinstance(thing, dict):
        for one in thing.values():
            tensors_in(one, found)
    elif hasattr(thing, "__dataclass_fields__"):
        for name in thing.__dataclass_fields__:
            tensors_in(getattr(thing, name), found)
    return found


def ends_gradients(tensors):
    """Would one of them have a gradient, but for torch.no_grad()? torch's checkpoint says it, too, and ends nothing."""
    if torch.is_grad_enabled() or not any(one.requires_grad for one in tensors):
        return False
    frame = sys._getframe()
    while frame and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
        frame = frame.f_back
    return frame is None


def in_order(module, args, named):
    """All arguments of a call of forward, as its signature has them, however they were given"""
    places = {name: place for place, name in enumerate(inspect.signature(module.forward).parameters)}
    return [*args, *(named[name] for name in sorted(named, key=lambda name: (places.get(name, len(places)), name)))]


class Frame:
    """A module's forward while it runs"""
    def __init__(self, module, name):
        self.module, self.name, self.calls, self.bound = module, name, [], {}
        self.values, self.shapes, self.count, self.inputs = {}, [], 0, 0  # values: by the tensor's id
        self.tensors = {}  # by their ids

    def add(self, tensor):
        self.tensors[id(tensor)] = tensor
        self.values[id(tensor)] = self.count
        self.shapes.append(list(tensor.shape))
        self.count += 1
        return self.count - 1


NOT_NAMES = {"self", "__class__"}
PLUMBING = {"_wrapped_call_impl", "_call_impl"}  # of nn.Module
RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|poisson|normal_$|uniform_$|exponential_$")
FILLED = re.compile(r"\.new_(zeros|ones|full|tensor)$")  # of the tensor that they are called on its type counts alone
IN_PLACE = re.compile(r"[a-z0-9]_$|__i[a-z]+__$|__setitem__$")
MOST_NUMBERS = 1 << 20  # of a constant that is described


class Constants:
    """Tensors with numbers that are the same for each batch: the model's buffers, and what is made of them or of nothing"""
    def __init__(self, construct_again):
        self.construct_again, self.buffers, self.names, self.described = construct_again, None, {}, {}

    def buffer(self, name):
        if self.buffers is None:
            with without_initialisation(), torch.device("cpu"):
                self.buffers = dict(self.construct_again().named_buffers(remove_duplicate=False))
        return self.buffers[name]

    def describe_mask(self, tensor):
        """Of booleans the triangle that they are, or nothing"""
        rows = tensor.reshape(tensor.shape[-2:]) if tensor.dim() > 1 and tensor.numel() == tensor.shape[-1] * tensor.shape[-2] else None
        if rows is None or not 0 < rows.numel():
            return None
        first = int(rows[0].int().sum())
        for upper, diagonal in (False, first - 1), (True, rows.shape[1] - first):
            if torch.equal(rows, torch.ones_like(rows).triu(diagonal) if upper else torch.ones_like(rows).tril(diagonal)):
                key = tuple(tensor.shape), diagonal, upper
                if key not in self.names:
                    self.names[key] = f"c{len(self.names)}"
                    self.described[self.names[key]] = {"type": "mask", "shape": list(tensor.shape), "diagonal": diagonal, "upper": upper}
                return self.names[key]
        return None

    def refused(self, tensor):
        """Why it is not described: a word of model.lua's"""
        if tensor.dtype == torch.bool:
            return "booleans"
        finite = not tensor.dtype.is_floating_point or bool(tensor.isfinite().all())
        return "size" if finite and tensor.numel() > MOST_NUMBERS else "type" if finite else "infinities"

    def describe(self, tensor):
        """Its name, equal for equal ones; nothing where JSON or memtide has no word for it"""
        if tensor.dtype == torch.bool:
            return self.describe_mask(tensor)
        whole = tensor.dtype in (torch.int64, torch.int32)
        if not (whole or tensor.dtype == torch.float32) or not 0 < tensor.numel() <= MOST_NUMBERS or tensor.dim() == 0:
            return None
        if not whole and not tensor.isfinite().all():
            return None
        values = tensor.flatten().tolist()
        key = whole, tuple(tensor.shape), tuple(values)
        if key not in self.names:
            self.names[key] = f"c{len(self.names)}"
            self.described[self.names[key]] = {"type": "int64" if whole else "float32", "shape": list(tensor.shape),
                                               "values": values}
        return self.names[key]


def part_of(view, whole):
    """[[dimension, start, length], ...]: what the view leaves out of the whole, dimensions of 1 apart; nothing where it is another one"""
    large = [place for place, size in enumerate(whole.shape) if size > 1]
    sizes = [(size, stride) for size, stride in zip(view.shape, view.stride()) if size > 1]
    if len(sizes) != len(large) or not whole.is_contiguous():
        return None
    part, offset = [], view.storage_offset() - whole.storage_offset()
    for (size, stride), place in zip(sizes, large):
        if stride != whole.stride(place):
            return None
        start, offset = divmod(offset, stride)
        if size < whole.shape[place]:
            part.append([place, start, size])
    return part


def same_storage(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class Trace(TorchFunctionMode):
    def __init__(self, model, leaves, constants):
        super().__init__()
        self.origin = {}  # of constants that functions have made, by the tensor's id: (a buffer's name or nothing, functions that allocate)
        self.constants, self.known, self.changed = constants, {}, False  # known: numbers of constants by the tensor's id
        self.read = {}  # buffers: their constants
        self.used = set()  # names of parameters and buffers that a forward reads itself
        self.names = {}
        for name, module in model.named_modules():
            self.names.setdefault(id(module), name)
        self.parameters = {id(p): name for name, p in list(model.named_parameters(remove_duplicate=False))[::-1]}
        self.buffers = {id(b): name for name, b in list(model.named_buffers(remove_duplicate=False))[::-1]}
        self.leaves, self.frames, self.alive, self.quiet, self.done = leaves, [], [], 0, {}

    # -- arguments

    def encode(self, thing):
        if isinstance(thing, torch.Tensor):
            return self.encode_tensor(thing)
        if thing is None or thing is Ellipsis or isinstance(thing, (torch.dtype, torch.device)):
            return {"word": "..." if thing is Ellipsis else str(thing)}
        if isinstance(thing, (bool, int, str)):
            return int(thing) if isinstance(thing, int) and not isinstance(thing, bool) else thing
        if isinstance(thing, float):
            return thing if abs(thing) < float("inf") else {"word": str(thing)}
        if isinstance(thing, slice):
            return {"slice": [self.encode(part) for part in (thing.start, thing.stop, thing.step)]}
        if isinstance(thing, (list, tuple)):
            return [self.encode(one) for one in thing]
        return {"word": type(thing).__name__}

    def numbers_of(self, tensor):
        """Of a constant"""
        if id(tensor) in self.frames[-1].values:
            return None
        if id(tensor) in self.buffers and id(tensor) not in self.known:
            self.known[id(tensor)] = self.constants.buffer(self.buffers[id(tensor)])
        return self.known.get(id(tensor))

    def constant_name(self, tensor):
        self.quiet += 1
        try:
            numbers = self.numbers_of(tensor)
            if numbers is not None and id(tensor) in self.buffers:
                numbers = self.constants.buffer(self.buffers[id(tensor)])  # as a whole
            return None if numbers is None else self.constants.describe(numbers)
        finally:
            self.quiet -= 1

    def place_of(self, tensor):
        """Where a constant's numbers are from: of a view of a buffer that one and the part of it; of a mask what has made it"""
        buffer, functions = self.origin.get(id(tensor), (None, []))
        numbers, whole = self.known[id(tensor)], buffer and self.constants.buffer(buffer)
        self.quiet += 1
        try:
            if numbers.dtype == torch.bool:
                of = {} if whole is None else {"buffer": buffer, "of": [str(whole.dtype)[6:], *([1, 1, *whole.shape][-2:])]}
                return {"made": functions, **of}
            part = part_of(numbers, whole) if whole is not None and not functions and numbers.dtype == torch.float32 else None
            name = None if part is None else self.constants.describe(whole)
            if name is None:
                return {}
            self.read[buffer] = name
            self.used.add(buffer)
            return {"buffer": buffer, "part": part}
        finally:
            self.quiet -= 1

    def encode_tensor(self, tensor):
        name = self.constant_name(tensor)
        if name and id(tensor) in self.buffers:
            self.read[self.buffers[id(tensor)]] = name
        elif name:
            self.note({"op": "constant", "args": [], "named": {}, "constant": name, **self.place_of(tensor)}, [tensor], sys._getframe())
        value = self.frames[-1].values.get(id(tensor))
        if value is not None:
            return {"value": value}
        for names, kind in (self.parameters, "parameter"), (self.buffers, "buffer"):
            if id(tensor) in names:
                self.used.add(names[id(tensor)])
                return {kind: names[id(tensor)]}
        known = self.known.get(id(tensor))
        return {"outside": list(tensor.shape), **({} if known is None else {"of": self.constants.refused(known)})}

    # -- variables

    def bound_now(self, frame):
        """{variable: value} of the functions between the running module and this call, the outermost first"""
        functions = []
        while frame and frame.f_code is not CALL:
            own = frame.f_locals.get("self") is self.frames[-1].module and frame.f_code.co_name not in PLUMBING
            if own and not frame.f_code.co_filename.startswith("<") or not is_torchs(frame.f_code.co_filename):
                functions.append(frame.f_locals)
            frame = frame.f_back
        bound = {}
        for variables in reversed(functions):
            for name, held in variables.items():
                value = self.frames[-1].values.get(id(held)) if isinstance(held, torch.Tensor) else None
                if value is not None and name not in NOT_NAMES:
                    bound[name] = value
        return bound

    def note(self, record, results, frame):
        top = self.frames[-1]
        now = self.bound_now(frame)
        record["bound"] = [[name, value] for name, value in now.items() if top.bound.get(name) != value]
        record["gone"] = [name for name in top.bound if name not in now]
        record["where"] = place(frame)
        top.bound = now
        self.alive.extend(results)
        record["out"] = [top.add(one) for one in results]
        top.calls.append(record)

    # -- calls of functions

    def computed(self, op, func, args, named):
        """[what the call gives], with numbers; nothing where it reads a value or a parameter, or is random"""
        given = tensors_in([args, named], [])
        filled = FILLED.search(op)
        constant = [self.numbers_of(one) is not None for one in given[1 if filled else 0:]]
        if IN_PLACE.search(op) and given and self.numbers_of(given[0]) is not None:
            of_model = any(self.known.get(id(given[0])) is one or one.untyped_storage().data_ptr() ==
                           self.known[id(given[0])].untyped_storage().data_ptr()
                           for one in (self.constants.buffers or {}).values())
            self.changed = self.changed or of_model or not all(constant)
        if RANDOM.search(op) or not all(constant) or "__get__" in op:
            return None

        def with_numbers(thing):
            if isinstance(thing, torch.Tensor):
                return torch.empty(0, dtype=thing.dtype) if filled and thing is given[0] else self.numbers_of(thing)
            if isinstance(thing, torch.device):
                return torch.device("cpu")
            if isinstance(thing, (list, tuple)):
                return type(thing)(with_numbers(one) for one in thing)
            return thing

        try:
            return [func(*[with_numbers(one) for one in args],
                         **{name: "cpu" if name == "device" else with_numbers(one) for name, one in named.items()})]
        except Exception:
            return None

    def origin_of(self, tensor):
        return self.origin.get(id(tensor)) or (self.buffers.get(id(tensor)), [])

    def keep(self, results, numbers, op, given):
        sources = [self.origin_of(one) for one in given if self.numbers_of(one) is not None]
        for tensor, one in zip(results, numbers):
            self.alive.append(tensor)
            view = any(same_storage(one, self.numbers_of(other)) for other in given if self.numbers_of(other) is not None)
            functions = [name for _, names in sources for name in names] + ([] if view else [op.rsplit(".", 1)[-1].strip("_")])
            self.origin[id(tensor)] = next((name for name, _ in sources if name), None), functions
            self.known[id(tensor)] = one
            for name, buffer in (self.constants.buffers or {}).items():
                same = one.dtype == torch.int64 and one.is_contiguous() and one.data_ptr() == buffer.data_ptr()
                if same and one.numel() == buffer.numel():  # an index in another shape chooses the same rows
                    self.buffers[id(tensor)] = name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.quiet or not self.frames:
            return func(*args, **kwargs)
        op = resolve_name(func) or getattr(func, "__name__", str(func))
        if HOOKS_OF_VALUES.search(op):
            raise Refused("model", f"{op}: hooks are not imported: expected the model without it", place(sys._getframe(1)))
        numbers = self.computed(op, func, args, kwargs)
        if numbers is not None:
            result = func(*args, **kwargs)
            self.keep(tensors_in(result, []), tensors_in(numbers, []), op, tensors_in([args, kwargs], []))  # none of what is changed in place
            return result
        if op.endswith(".zero_") and args and self.zeroed(args[0], sys._getframe(1)):
            return func(*args, **kwargs)
        given = tensors_in([args, kwargs], [])
        record = {"op": op, "args": [self.encode(one) for one in args],
                  "named": {name: self.encode(one) for name, one in kwargs.items()}}
        if ends_gradients(given):
            record["cut"] = True
        versions = self.versions(given)
        result = func(*args, **kwargs)
        results = tensors_in(result, [])
        if record["op"].endswith("__setitem__"):
            results = [args[0]]
        if results:
            self.note(record, results, sys._getframe(1))
        self.written(given, versions, results)
        return result

    def versions(self, tensors):
        """How often each was written to, through whatever view"""
        self.quiet += 1
        try:
            return [one._version for one in tensors]
        finally:
            self.quiet -= 1

    def written(self, given, versions, results):
        """Of what a call was given: what it has written to is another value now, which has a number where the call gives it; all that lies in
        the same storage is another one, too, without a number."""
        top, named = self.frames[-1], {id(one) for one in results}
        for tensor, before, now in zip(given, versions, self.versions(given)):
            if before == now:
                continue
            for one in [tensor, *self.sharing(tensor)]:
                if id(one) in top.values and id(one) not in named:
                    top.values[id(one)] = "changed"

    def sharing(self, tensor):
        """Other values of the running module in the same storage: what is written to one is written to all"""
        top = self.frames[-1]
        storage = tensor.untyped_storage()._cdata
        return [one for key, one in top.tensors.items() if one is not tensor and isinstance(top.values.get(key), int)
                and one.untyped_storage()._cdata == storage]

    def zeroed(self, part, frame):
        """whole[part].zero_() as a product with ones and zeros; false where it is none"""
        others = self.sharing(part)
        if len(others) != 1:
            return False
        whole = others[0]
        if not whole.is_contiguous() or whole.untyped_storage().nbytes() != whole.numel() * whole.element_size():
            return False
        mask = torch.ones(whole.shape)
        torch.as_strided(mask, part.shape, part.stride(), part.storage_offset()).zero_()
        name = self.constants.describe(mask)
        if not name:
            return False
        top = self.frames[-1]
        self.note({"op": "constant", "args": [], "named": {}, "constant": name}, [mask], frame)
        record = {"op": "torch.Tensor.mul", "args": [self.encode(whole), {"value": top.values[id(mask)]}], "named": {}}
        self.note(record, [whole], frame)
        top.values[id(part)] = "changed"
        return True

    # -- calls of modules

    def call(self, module, original, args, named, frame):
        if self.quiet or id(module) not in self.names:
            return original(module, *args, **named)
        leaf = is_leaf(module, self.leaves)
        all_args = args if leaf else in_order(module, args, named)
        given = tensors_in([all_args, named if leaf else {}], [])
        name = self.names[id(module)]
        record = {"call": name, "args": [self.encode(one) for one in all_args],
                  "named": {key: self.encode(one) for key, one in named.items() if leaf}} if self.frames else None
        versions = self.versions(given)
        if leaf:
            if record and ends_gradients(given + list(module.parameters())):
                record["cut"] = True
            self.quiet += 1
            try:
                result = original(module, *args, **named)
            finally:
                self.quiet -= 1
            self.done.setdefault(id(module), None)
        else:
            inner = Frame(module, name)
            for tensor in given:
                if id(tensor) not in inner.values:
                    inner.add(tensor)
            inner.inputs = inner.count
            self.frames.append(inner)
            try:
                result = original(module, *args, **named)
                inner.returns = [self.encode(one) for one in tensors_in(result, [])]
            finally:
                self.frames.pop()
            self.done.setdefault(id(module), []).append(inner)
        if self.frames:
            results = tensors_in(result, [])
            self.note(record, results, frame)
            self.written(given, versions, results)
        return result


def call_module(self, *args, **named):
    return running.call(self, plain_call, args, named, sys._getframe(1)) if running else plain_call(self, *args, **named)


CALL = call_module.__code__
running = None
plain_call = nn.Module.__call__ if torch else None


def trace(model, request, batch, constants):
    global running
    traced = running = Trace(model, set(request["leaves"]), constants)
    nn.Module.__call__ = call_module
    try:
        with running, torch.device("meta"):  # of tensors that forward makes without saying where
            output = model(*inputs_of(request, batch))
        refuse_hooks(model)  # that forward has registered
    except Refused:
        raise
    except Exception as error:
        hint = ""
        if isinstance(error, (NotImplementedError, RuntimeError)) and "meta" in str(error):
            hint = "forward asks for a tensor's numbers (a branch on data?): "
        raise Refused("model", f"{hint}{first_line(error)}", place_of_error(error)) from error
    finally:
        nn.Module.__call__ = plain_call
        running = None
    traced.outputs = len(tensors_in(output, []))
    return traced, tensors_in(output, [])


# ---- two traces as one

def merge(a, b):
    """Two arguments of one call, with the batches BATCHES: equal, or a multiple of the batch"""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [merge(x, y) for x, y in zip(a, b)]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        if "constant" in a and a["constant"] != b["constant"]:
            b = a = {**a, "constant": "of the batch"}
        return {key: merge(value, b[key]) for key, value in a.items()}
    if a == b:
        return a
    whole = isinstance(a, int) and isinstance(b, int)
    if whole and a % BATCHES[0] == 0 and a // BATCHES[0] * BATCHES[1] == b:
        return {"batch": a // BATCHES[0]}
    raise Refused("model", f"its calls depend on the batch in another way than as a multiple of it: {a} and {b}")


def frame_description(first, second):
    if [call.get("op", call.get("call")) for call in first.calls] != \
            [call.get("op", call.get("call")) for call in second.calls]:
        where = next((a["where"] for a, b in zip(first.calls, second.calls) if a.get("op") != b.get("op")), "")
        raise Refused("model", f"{first.name or 'forward'} makes other calls for a batch of {BATCHES[1]} than for one of "
                      f"{BATCHES[0]}", where)
    calls = []
    for a, b in zip(first.calls, second.calls):
        try:
            calls.append(merge(a, b))
        except Refused as refused:
            raise Refused("model", refused.message, a["where"]) from None
    return {"inputs": first.inputs, "calls": calls, "returns": merge(first.returns, second.returns),
            "shapes": merge(first.shapes, second.shapes)}


def steps_of(frame):
    """A frame's description without what is of the caller, and of no other value: names of variables, lines"""
    return {**frame, "calls": [{key: value for key, value in call.items() if key not in ("bound", "gone", "where")} for call in frame["calls"]]}


def plain(value):
    """A constructor's argument as JSON has it, or nothing"""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, (list, tuple)):
        parts = [plain(one) for one in value]
        return None if None in parts else parts
    return None


def arguments(module):
    """{name: (value, default)} of the constructor, as far as it is known"""
    if isinstance(module, nn.RNNBase):  # whose own constructors say *args
        named = inspect.signature(nn.RNNBase.__init__).parameters
        found = {name: (None, None if one.default is one.empty else one.default) for name, one in named.items()
                 if name not in ("self", "mode", "device", "dtype")}
        return {**found, "nonlinearity": (None, "tanh")} if hasattr(module, "nonlinearity") else found
    try:
        signature = inspect.signature(type(module).__init__)
        _, args, named = made.get(id(module), (None, (), {}))
        bound = signature.bind_partial(module, *args, **named)
    except (TypeError, ValueError):
        return {}
    found = {}
    for name, one in list(signature.parameters.items())[1:]:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or name in ("device", "dtype"):
            continue
        default = None if one.default is one.empty else one.default
        found[name] = bound.arguments.get(name, default), default
    return found


def as_trained(module):
    """Does a leaf compute something else in training than in evaluation?"""
    return any(getattr(module, name, 0) for name in ("p", "dropout")) or isinstance(module, nn.modules.batchnorm._BatchNorm)


def options_of(module):
    """Of a leaf: arguments of the constructor that are not the default ones, as its attributes have them now"""
    options = {}
    for name, (value, default) in arguments(module).items():
        now = getattr(module, name, value)
        if name == "bias":
            now = getattr(module, "bias", getattr(module, "in_proj_bias", value))
            now = now if isinstance(now, bool) else now is not None
        elif name in ("add_bias_kv",):
            now = module.bias_k is not None
        if isinstance(now, torch.Tensor) or now is None or now == default:
            continue
        now = plain(now)
        options[name] = {"word": type(value).__name__} if now is None else now
    if not module.training and as_trained(module):
        options["training"] = {"word": "False"}  # in a model that trains: no layer has this option
    return options


def own(named, names, read):
    return [[name, list(tensor.shape), names[id(tensor)]] + ([read[names[id(tensor)]]] if names[id(tensor)] in read else [])
            for name, tensor in named if tensor is not None]


def describe(model, first_values, request, construct_again):
    """The description, and the names of the state_dict that belong to what is called"""
    constants = Constants(construct_again)
    (first, _), (second, output) = (trace(model, request, batch, constants) for batch in BATCHES)
    read = {} if first.changed else first.read
    called, used = set(), first.used
    for name, module in model.named_modules():
        if id(module) in first.done:
            parts = name.split(".")
            called.update(".".join(parts[:i]) for i in range(len(parts) + 1))
    modules = []
    for name, module in model.named_modules():
        kind = type(module)
        qualified = class_name(module)
        one = {"name": name, "class": qualified, "parameters": own(module._parameters.items(), first.parameters, first_values),
               "buffers": own(module._buffers.items(), first.buffers, read), "unused": name not in called}
        frames = first.done.get(id(module))
        if is_leaf(module, request["leaves"]):
            one["options"] = options_of(module)
            used.update(f"{name}.{key}" if name else key for key in module.state_dict() if not one["unused"])
        else:
            one["children"] = [[key, running_name(first, child, name, key)] for key, child in module._modules.items()
                               if child is not None]
            one["args"] = [[key, plain(value)] for key, (value, _) in arguments(module).items() if plain(value) is not None]
            one["sequence"] = kind.forward is nn.Sequential.forward
            one["list"] = not frames
        if frames:
            described = [frame_description(*both) for both in zip(frames, second.done[id(module)])]
            one.update(described[0])
            one["again"] = [other for other in described[1:] if steps_of(other) != steps_of(described[0])]
        modules.append(one)
    shapes = [list(one.shape[1:]) for one in output]
    frozen = [name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad]
    kept = kept_by(model, second)
    evaluation = in_evaluation(model, request, constants, first)
    return {"modules": modules, "outputs": shapes, "evaluation": evaluation, "kept": kept, "model": type(model).__name__, "frozen": frozen,
            "constants": {} if first.changed else constants.described}, used


def names_of_calls(frame):
    return [call.get("op", call.get("call")) for call in frame.calls]


def is_part_of(few, many):
    rest = iter(many)
    return all(one in rest for one in few)


def drops(call):
    """Is it a function that leaves numbers out at random?"""
    place, name, otherwise = (4, "dropout_p", 0) if "attention" in call.get("op", "") else (1, "p", 0.5)
    args, named = call["args"], call["named"]
    on = name != "p" or (args[2] if len(args) > 2 else named.get("training", named.get("train", True)))
    return ("dropout" in call.get("op", "") or name != "p") and on and (args[place] if len(args) > place else named.get(name, otherwise)) != 0


def kept_by(model, traced):
    """Names of attributes that hold a value of forward when it is over"""
    values = {id(one) for one in traced.alive}
    return [f"{name}.{key}" if name else key for name, module in model.named_modules() for key, held in vars(module).items()
            if key not in ("_parameters", "_buffers", "_modules") and any(id(one) in values for one in tensors_in(held, []))]


def in_evaluation(model, request, constants, training):
    """[[what, where], ...]: what model.eval() changes that a script does not say, whose forward is that of training"""
    modes = {module: module.training for module in model.modules()}
    others = Constants(constants.construct_again)
    others.buffers = constants.buffers
    model.eval()
    try:
        traced, output = trace(model, request, BATCHES[0], others)
        found = [[f"the module {name} ({class_name(module)}) is as in training", ""] for name, module in model.named_modules()
                 if module.training and is_leaf(module, training.leaves) and as_trained(module)]
    except Refused as refused:
        return [[f"PyTorch raises {refused.message}", refused.where]]
    finally:
        for module, mode in modes.items():
            module.training = mode
    fewer = traced.outputs < training.outputs
    if fewer:  # memtide's own step, too, leaves out what only the others hang on
        found.append([f"its step in PyTorch gives {traced.outputs} of {training.outputs} outputs, the one that framework = \"pytorch\" predicts "
                      "all of them", ""])
    for module in modes:
        for one, other in zip(training.done.get(id(module)) or [], traced.done.get(id(module)) or []):
            now, before = names_of_calls(other), names_of_calls(one)
            found += [[f"{call['op']} drops", call["where"]] for call in other.calls if drops(call)]
            if now != before and not (fewer and is_part_of(now, before)):
                at = next((i for i, pair in enumerate(zip(now, before)) if pair[0] != pair[1]), min(len(now), len(before)))
                call = (other.calls[at:] or one.calls[at:])[0]
                found.append([f"{class_name(module)} makes other calls", call["where"]])
    return found


def running_name(traced, child, parent, key):
    """The child's first name, which is another one where it stands in two places"""
    return traced.names.get(id(child), f"{parent}.{key}" if parent else key)


# ---- weights

TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int32": "I32", "int64": "I64",
         "uint8": "U8", "bool": "BOOL", "int8": "I8", "int16": "I16"}


def write_safetensors(tensors, path):
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0])):
        tensor = tensor.detach().contiguous().cpu()
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[str(tensor.dtype)[6:]], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        data.append(tensor)
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = f"{path}.{os.getpid()}.part"
    try:
        with open(partial, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in data:
                file.write(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise Refused("file", f"cannot write {path}: {error.strerror}") from error


def distinct(model):
    """The state_dict and buffers that are not in it, a tensor of several names under the first one"""
    seen, found = set(), {}
    for name, tensor in [*model.state_dict(keep_vars=True).items(), *model.named_buffers()]:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def task_of(shape, inputs):
    """What an output is, by its shape without the batch"""
    if len(shape) == 2 and any(not one["type"].startswith("float") for one in inputs):
        return "tokens"
    return "classes" if len(shape) in (1, 3) and shape[0] > 1 else "values"


def loss_of(task, output):
    """The first samples have the first classes. -> loss, targets"""
    if task == "values":
        target = torch.linspace(-1, 1, output.numel()).view(output.shape)
        return nn.functional.mse_loss(output, target), target
    if task == "tokens":
        output = output.flatten(0, 1)
    labels = (torch.arange(output[:, 0].numel()) % output.shape[1]).view(output[:, 0].shape)
    return nn.functional.cross_entropy(output, labels), labels


def without_noise(model):
    """Random numbers differ between the two."""
    for module in model.modules():
        for name in "p", "dropout", "dropout_p", "attention_dropout":
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


class WithoutDropout(TorchFunctionMode):
    """The same for functions that forward calls"""
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        elif name == "scaled_dot_product_attention" and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        return func(*args, **kwargs)


def check(model, request):
    """One forward and backward pass: numbers for memtide to compare its own with"""
    torch.manual_seed(1)
    inputs = inputs_of(request, request["check"], "cpu")
    try:
        with WithoutDropout():
            outputs = tensors_in(without_noise(model)(*inputs), [])
        task = task_of(outputs[0].shape[1:], request["inputs"])
        pairs = [loss_of(task, one) for one in outputs]
        loss = sum(one for one, _ in pairs)
        loss.backward()
    except Exception as error:
        raise Refused("model", f"--check: a step in PyTorch raises {first_line(error)}", place_of_error(error)) from error
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"batch": request["check"], "inputs": [one.flatten().tolist() for one in inputs],
            "targets": pairs[0][1].flatten().tolist(), "loss": float(loss), "outputs": outputs[0].flatten().tolist(),
            "gradients": {name: float(g.double().norm()) for name, g in gradients.items()}}


def answer(request):
    if torch is None:
        raise Refused("python", f"{sys.executable} has no torch: {first_line(without_torch)}")
    make, (args, named) = find_constructor(request["source"]), arguments_of(request.get("args"))
    description, used = describe(*make_meta(make, args, named), request, lambda: construct(make, args, named))
    description["task"] = task_of(description["outputs"][0], request["inputs"])
    if request.get("weights"):
        torch.manual_seed(0)
        model = construct(make, args, named)
        write_safetensors({name: one for name, one in distinct(model).items() if name in used}, request["weights"])
        if request.get("check"):
            description["check"] = check(model, request)
    description.update(torch=torch.__version__, inputs=request["inputs"], source=request["source"])
    return description


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints is not part of the description
    try:
        found = answer(json.loads(sys.argv[1]))
    except Refused as refused:
        found = {"error": {"kind": refused.kind, "message": refused.message, "where": refused.where}}
    json.dump(found, out)
    out.close()


main()
