# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the wheel has a shared library for this platform, and no code for a version of Python.

`make wheel` calls it, with ATTND_VERSION and ATTND_PLATFORM in the environment, in a copy of this folder that has the library."""
import os

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return 'py3', 'none', os.environ['ATTND_PLATFORM']


setup(version=os.environ['ATTND_VERSION'], distclass=Binary, cmdclass={'bdist_wheel': Wheel})
