# SPDX-License-Identifier: Apache-2.0
"""What help() shows: every method of Engine and Client says what each of its parameters is, with types; arrays with shape and dtype."""
import inspect
import pydoc
import re
import unittest

import attnd


def methods(of):
    """Public ones, and __init__, whose parameters the class describes."""
    for name, method in inspect.getmembers(of, inspect.isfunction):
        if not name.startswith('_') or name == '__init__':
            yield name, method, inspect.getdoc(of if name == '__init__' else method)


class Help(unittest.TestCase):
    def test_parameters(self):
        for of in (attnd.Engine, attnd.Client):
            for name, method, text in methods(of):
                signature = inspect.signature(method)
                with self.subTest(f'{of.__name__}.{name}'):
                    self.assertTrue(text, 'it has no text')
                    self.assertIsNot(signature.return_annotation, inspect.Signature.empty, 'what it returns has no type')
                    for parameter in list(signature.parameters.values())[1:]:
                        self.assertIsNot(parameter.annotation, inspect.Parameter.empty, f'{parameter.name} has no type')
                        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and len(signature.parameters) > 2:  # else the text is of it
                            self.assertRegex(text, rf'(?m)^(\w+, )*{parameter.name}(, \w+)*: ', f'{parameter.name} is not described')

    def test_shapes(self):
        for of in (attnd.Engine, attnd.Client):
            for name in ('append', 'attend', 'paged', 'merge'):
                text = inspect.getdoc(getattr(of, name))
                for array in re.findall(r"(\w+): '?Array", str(inspect.signature(getattr(of, name)))):
                    with self.subTest(f'{of.__name__}.{name}: {array}'):
                        self.assertRegex(text, rf'(?m)^(\w+, )*{array}(, \w+)*: (.*\[\w+\]|as in attend|.*, as in)')

    def test_help_shows_them(self):
        shown = pydoc.plain(pydoc.render_doc(attnd.Client.attend))
        for text in ("q: 'Array'", '[rows][query_heads][head_dim]: ', 'Of float32 or the geometry\'s dtype', 'float64 of NumPy and lists of numbers are rounded to float32', 'kernel: 0: '):
            self.assertIn(text, shown)


if __name__ == '__main__':
    unittest.main()
