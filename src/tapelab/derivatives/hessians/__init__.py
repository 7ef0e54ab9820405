"""Hessians, and their products with vectors."""
