"""What happens next: one loop, and the reactions it runs."""
