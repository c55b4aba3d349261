"""The wheel: the package, and in its folder `shipped` the YAML that lies at the root of a checkout.

Everything else about the project stands in pyproject.toml.
"""

from setuptools import find_packages, setup

SHIPPED = ("cfg/training", "cfg/deploy", "configs", "data", "experiments")
folders = {f"yolov7fast.shipped.{folder.replace('/', '.')}": folder for folder in SHIPPED}

setup(
    packages=[*find_packages(include=["yolov7fast", "yolov7fast.*"]), *folders],
    package_dir=folders,
    package_data={"": ["*.html", "*.css", "*.js", "*.yaml"], "yolov7fast.shipped.experiments": ["*.json"]},
)
