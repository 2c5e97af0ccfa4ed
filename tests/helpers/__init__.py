"""What several tests share. No test module imports another: what two of them need is here."""
